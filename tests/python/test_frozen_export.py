"""`train --freeze`: what is frozen leaves a run as it came in, MXFP4 experts byte for byte."""

import json

import numpy
import pytest
import torch
import transformers
from running import clean_environment, run, run_well
from safetensors import safe_open

RANKS, SEQ, STEPS = 2, 8, 2
EXPERTS = "mlp.experts"


@pytest.fixture(scope="module")
def gpt_oss(reference):
    """A small GPT-OSS whose experts are stored as those of openai/gpt-oss-20b are."""
    return reference / "gpt_oss_mxfp4"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    numpy.random.default_rng(6).integers(1, 90, 4 * STEPS * RANKS * SEQ).astype("<u2").tofile(path)
    return path


@pytest.fixture
def train(tieshard, tokens, tmp_path):
    def run_it(model, *flags, out=tmp_path / "run", steps=STEPS, ranks=RANKS):
        run_well([tieshard, "train", "--model", model, "--data", tokens, "--out", out, "--steps", steps, "--seq", SEQ, "--lr", 1e-2,
                  "--ranks", ranks, "--threads", 1, *flags], env=clean_environment(), timeout=180)
        return out / "export"

    return run_it


def stored(folder):
    """{name: (dtype, shape, bytes)} of all files."""
    tensors = {}
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                tensors[name] = (str(tensor.dtype), tuple(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())
    return tensors


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def loaded(folder):
    """As transformers loads it; every weight has to come from a file."""
    quantised = "quantization_config" in config_of(folder)
    extra = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if quantised else {}
    model, info = transformers.GptOssForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, **extra)
    assert not any(info.values()), info
    return model.state_dict()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dim", ["last", "first"])
def test_frozen_experts_stay_mxfp4_byte_for_byte(train, gpt_oss, ranks, dim):
    out = train(gpt_oss, "--freeze", EXPERTS, "--shard-dim", dim, ranks=ranks)
    before, after = stored(gpt_oss), stored(out)
    assert before.keys() == after.keys()
    for name, (dtype, shape, data) in before.items():
        assert after[name][:2] == (dtype, shape), name
        if EXPERTS in name:
            assert after[name][2] == data, name
    assert any(before[name] != after[name] for name in before)
    assert (out / "config.json").read_bytes() == (gpt_oss / "config.json").read_bytes()
    loaded(out)


def test_before_any_step_nothing_has_changed(train, gpt_oss):
    out = train(gpt_oss, "--freeze", EXPERTS, steps=0)
    assert stored(out) == stored(gpt_oss)


def test_trained_experts_leave_in_bfloat16_without_a_quantization_config(train, gpt_oss):
    out = train(gpt_oss, steps=0)
    assert "quantization_config" not in config_of(out)
    assert {dtype for dtype, _, _ in stored(out).values()} == {"torch.bfloat16"}
    assert not any(name.endswith(("_blocks", "_scales")) for name in stored(out))
    expected = loaded(gpt_oss)
    for name, tensor in loaded(out).items():
        assert torch.equal(tensor, expected[name]), name


def test_of_experts_that_are_frozen_in_part_the_others_are_listed_as_not_converted(train, gpt_oss):
    out = train(gpt_oss, "--freeze", "layers.0.mlp.experts")
    frozen = "model.layers.0.mlp.experts."
    before, after = stored(gpt_oss), stored(out)
    for name, tensor in before.items():
        if name.startswith(frozen):
            assert after[name] == tensor
    others = [name for name in after if EXPERTS in name and not name.startswith(frozen)]
    assert others and all(after[name][0] == "torch.bfloat16" for name in others)
    known = config_of(gpt_oss)["quantization_config"]["modules_to_not_convert"]
    listed = config_of(out)["quantization_config"]["modules_to_not_convert"]
    assert listed[:len(known)] == known
    assert sorted(listed[len(known):]) == sorted({name.rsplit(".", 1)[0] for name in others})
    values = loaded(out)
    for name in others:
        assert values[name].view(torch.uint8).numpy().tobytes() == after[name][2], name


def test_a_matrix_alone_does_not_keep_its_module_quantised(train, gpt_oss):
    out = train(gpt_oss, "--freeze", "experts.down_proj", steps=0)
    assert not any(name.endswith("_blocks") for name in stored(out))


def test_a_dtype_that_is_asked_for_is_that_of_every_tensor(train, gpt_oss):
    out = train(gpt_oss, "--freeze", EXPERTS, "--export-dtype", "float32", steps=0)
    assert {dtype for dtype, _, _ in stored(out).values()} == {"torch.float32"}
    assert "quantization_config" not in config_of(out)


def test_experts_that_an_earlier_job_trained_are_not_the_source_s(train, gpt_oss, tmp_path):
    train(gpt_oss, "--save-every", STEPS, "--no-export", out=tmp_path / "first")
    went_on = train(gpt_oss, "--freeze", EXPERTS, "--resume", tmp_path / "first", steps=2 * STEPS)
    assert not any(name.endswith("_blocks") for name in stored(went_on))
    name = "model.layers.0.mlp.experts.down_proj"
    assert not torch.equal(loaded(went_on)[name], loaded(gpt_oss)[name])


def test_a_frozen_weight_of_a_plain_model_keeps_its_bytes(train, tiny, tmp_path):
    out = train(tiny, "--freeze", "layers.0.", "--freeze", "norm")
    before, after = stored(tiny), stored(out)
    for name in before:
        assert (before[name] == after[name]) == ("layers.0." in name or "norm" in name), name


@pytest.mark.parametrize(("flags", "code", "why"), [
    (["--freeze", "router"], "unknown-parameter", "--freeze \"router\""),
    (["--freeze", ""], "unknown-parameter", "--freeze \"\""),
    (["--freeze", "*"], "bad-flag", "all "),
    (["--freeze", "norm", "--lora", "r=2,alpha=2,targets=q_proj"], "bad-flag", "expected a run without --lora"),
])
def test_patterns_that_cannot_be_used_are_refused(tieshard, tiny, tokens, tmp_path, flags, code, why):
    done = run([tieshard, "train", "--model", tiny, "--data", tokens, "--out", tmp_path / "run", "--ranks", RANKS, "--seq", SEQ,
                "--steps", 1, *flags], env=clean_environment())
    assert done.returncode == 2 and f"[{code}]" in done.stderr and why in done.stderr, done.stderr
