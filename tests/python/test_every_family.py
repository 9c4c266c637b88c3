"""The verbs that compute, on every family that has a module: what train exports transformers loads, greedy tokens are those of
transformers, and an encoder-decoder's loss is its."""

import json
import math
import sys

import numpy
import pytest
import torch
import transformers
from running import ROOT, clean_environment, run, run_well
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from families import CASES

OWN_WEIGHTS = [name for name, case in CASES.items() if "like" not in case]
DECODERS = [name for name in OWN_WEIGHTS if not name.startswith("t5")]
SEQ, TARGET = 20, 8  # of T5: tokens of a sample, and of these the targets
PROMPT = [3, 14, 15, 92, 65, 35, 8, 9, 7, 9, 3]  # longer than a window


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products want sizes that are multiples of 16 bytes
    return model.eval()


@pytest.fixture
def tokens(tmp_path):
    ids = numpy.random.default_rng(0).integers(0, 97, 8 * SEQ).astype("<u2")
    ids.tofile(tmp_path / "tokens.bin")
    return ids


def target_flags(name):
    return ["--target-len", TARGET] if name.startswith("t5") else []


@pytest.mark.parametrize("name", OWN_WEIGHTS)
def test_what_train_exports_loads_and_has_moved(tieshard, reference, tokens, tmp_path, name):
    run_well([tieshard, "train", "--model", reference / name, "--data", tmp_path / "tokens.bin", "--out", tmp_path / "run",
              "--steps", 2, "--seq", SEQ, "--ranks", 2, "--lr", "1e-2", "--activation-checkpointing", *target_flags(name)],
             timeout=120)
    before, after = load(reference / name).state_dict(), load(tmp_path / "run" / "export").state_dict()
    assert before.keys() == after.keys()
    assert [fqn for fqn in before if before[fqn].shape != after[fqn].shape or before[fqn].equal(after[fqn])] == []


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_tokens_are_those_of_transformers(tieshard, reference, name):
    model = load(reference / name)
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False, pad_token_id=0)
    done = run_well([tieshard, "generate", "--model", reference / name, "--json", "--prompt-tokens", ",".join(map(str, PROMPT)),
                     "--max-new-tokens", 16])
    assert json.loads(done.stdout)["tokens"] == expected[0, len(PROMPT):].tolist()


@pytest.mark.parametrize("name", [name for name in OWN_WEIGHTS if name.startswith("t5")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_loss_of_an_encoder_decoder_is_that_of_transformers(tieshard, reference, tokens, tmp_path, name, ranks):
    samples = torch.from_numpy(tokens.astype("int64")).view(-1, SEQ)
    model = load(reference / name)
    with torch.no_grad():
        expected = model(input_ids=samples[:, :-TARGET], labels=samples[:, -TARGET:].contiguous()).loss.item()
    done = run_well([tieshard, "eval", "--model", reference / name, "--data", tmp_path / "tokens.bin", "--seq", SEQ, "--json",
                     "--ranks", ranks, *target_flags(name)])
    got = json.loads(done.stdout)
    assert got["loss"] == pytest.approx(expected, abs=2e-6)
    assert got["targets"] == samples.shape[0] * TARGET and got["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


@pytest.mark.parametrize(("name", "flags", "part"), [
    ("t5_tied", [], "--target-len 0"), ("t5_tied", ["--target-len", SEQ], "1 to 19"), ("llama_tied", ["--target-len", 4], "llama"),
    ("t5_tied", ["--target-len", 4, "--document-separator", 1], "documents")])
def test_targets_that_do_not_fit_the_family_are_refused(tieshard, reference, tokens, tmp_path, name, flags, part):
    for verb in (["train", "--out", tmp_path / "run"], ["eval"]):
        done = run([tieshard, *verb, "--model", reference / name, "--data", tmp_path / "tokens.bin", "--seq", SEQ, *flags],
                   env=clean_environment())
        assert done.returncode == 2 and "[bad-flag]" in done.stderr and part in done.stderr, done.stderr


def test_an_encoder_decoder_does_not_generate(tieshard, reference):
    done = run([tieshard, "generate", "--model", reference / "t5_tied", "--prompt-tokens", "1,2"], env=clean_environment())
    assert done.returncode == 2 and "[bad-flag]" in done.stderr and "encoder-decoder" in done.stderr, done.stderr


def test_gpt2_has_no_more_positions_than_it_has_and_says_so_first(tieshard, reference, tokens, tmp_path):
    model = reference / "gpt2_tied"
    for verb in (["train", "--data", tmp_path / "tokens.bin", "--out", tmp_path / "run", "--seq", 40],
                 ["train", "--data", tmp_path / "tokens.bin", "--out", tmp_path / "run", "--seq", 40, "--dry-run"],
                 ["generate", "--prompt-tokens", "1,2,3", "--max-new-tokens", 30, "--json"]):
        done = run([tieshard, *verb, "--model", model], env=clean_environment())
        assert done.returncode == 2 and "n_positions" in done.stderr and not done.stdout.startswith("{"), done.stderr


@pytest.mark.parametrize(("name", "targets"), [("gpt_oss_tied", "router"), ("qwen2_moe", "shared_expert_gate"), ("qwen3_moe", "gate_proj"), ("gpt2_tied", "c_attn")])
def test_an_adapter_that_peft_would_lose_is_refused(tieshard, reference, tokens, tmp_path, name, targets):
    done = run([tieshard, "train", "--model", reference / name, "--data", tmp_path / "tokens.bin", "--out", tmp_path / "run",
                "--seq", SEQ, "--lora", f"r=2,targets={targets}"], env=clean_environment())
    assert done.returncode and "[unknown-target]" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["gpt_oss_tied", "qwen2_moe", "qwen3_moe", "mixtral"])
def test_an_adapter_on_all_that_can_have_one_has_the_loss_of_peft(tieshard, reference, tokens, tmp_path, name):
    import peft

    flags = ["--data", tmp_path / "tokens.bin", "--seq", SEQ]
    run_well([tieshard, "train", "--model", reference / name, *flags, "--out", tmp_path / "run", "--steps", 5, "--lr", "1e-1",
              "--ranks", 2, "--lora", "r=3,alpha=8,targets=all-linear"], timeout=120)
    adapter = tmp_path / "run" / "adapter"
    got = json.loads(run_well([tieshard, "eval", "--model", reference / name, *flags, "--adapter", adapter, "--json"]).stdout)
    base = json.loads(run_well([tieshard, "eval", "--model", reference / name, *flags, "--json"]).stdout)
    ids = torch.from_numpy(tokens.astype("int64")).view(-1, SEQ)
    model = peft.PeftModel.from_pretrained(load(reference / name), adapter).eval()
    with torch.no_grad():
        expected = model(input_ids=ids, labels=ids, use_cache=False).loss.item()
    assert abs(got["loss"] - base["loss"]) > 1e-3
    assert got["loss"] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("flags", [["zzz"], ["."], ["experts", "--param-groups", "experts:lr=0"]], ids=" ".join)
def test_a_dry_run_refuses_what_cannot_be_frozen_as_the_run_does(tieshard, reference, tokens, tmp_path, flags):
    command = [tieshard, "train", "--model", reference / "gpt_oss_mxfp4", "--data", tmp_path / "tokens.bin", "--out",
               tmp_path / "run", "--seq", SEQ, "--steps", 1, "--freeze", *flags]
    dry, real = run([*command, "--dry-run"], env=clean_environment()), run(command, env=clean_environment())
    assert dry.returncode == real.returncode == 2
    assert dry.stderr.splitlines()[0] == real.stderr.splitlines()[0]


def test_the_export_of_a_checkpoint_of_mxfp4_is_bfloat16(tieshard, reference, tokens, tmp_path):
    run_well([tieshard, "train", "--model", reference / "gpt_oss_mxfp4", "--data", tmp_path / "tokens.bin", "--out", tmp_path / "run",
              "--seq", SEQ, "--steps", 2, "--save-every", 2, "--no-export"], timeout=120)
    run_well([tieshard, "export", tmp_path / "run", tmp_path / "model"])
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and "quantization_config" not in config
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_text_of_an_encoder_decoder_is_refused_before_it_is_loaded(tieshard, reference):
    done = run([tieshard, "generate", "--model", reference / "t5_tied", "--prompt-tokens", "1,2"], env=clean_environment())
    assert done.returncode == 2 and "expected a decoder, got an encoder-decoder" in done.stderr, done.stderr


def test_labels_alone_give_the_decoder_of_t5_its_tokens(tieshard, reference, tmp_path):
    ids, labels = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]]), torch.tensor([[11, 12, -100], [13, 1, 14]])
    save_file({"input_ids": ids, "labels": labels}, tmp_path / "batch")  # a name without an ending
    run_well([tieshard, "forward", reference / "t5_tied", "--tokens", tmp_path / "batch", "--out", tmp_path / "out.safetensors"])
    got = load_file(tmp_path / "out.safetensors")
    with torch.no_grad():
        expected = load(reference / "t5_tied")(input_ids=ids, labels=labels)
    torch.testing.assert_close(got["logits"], expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["loss"], expected.loss, rtol=1e-5, atol=1e-5)
    save_file({"input_ids": ids}, tmp_path / "alone")
    done = run([tieshard, "forward", reference / "t5_tied", "--tokens", tmp_path / "alone", "--out", tmp_path / "no.safetensors"],
               env=clean_environment())
    assert done.returncode == 2 and "expected decoder_input_ids or labels" in done.stderr, done.stderr
    save_file({"input_ids": ids, "decoder_input_ids": ids.clone()}, tmp_path / "both")
    done = run([tieshard, "forward", reference / "llama_tied", "--tokens", tmp_path / "both", "--out", tmp_path / "no.safetensors"],
               env=clean_environment())
    assert done.returncode == 2 and "expected no decoder_input_ids" in done.stderr, done.stderr


@pytest.mark.parametrize("name", OWN_WEIGHTS)
def test_every_stage_of_the_ladder_gives_the_same_logits(tieshard, reference, tmp_path, name):
    ids = torch.tensor([PROMPT])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids.clone()} if name.startswith("t5") else {})
    save_file(inputs, tmp_path / "batch")
    logits = {}
    for stage in ("eager", "load", "shard"):
        run_well([tieshard, "forward", reference / name, "--tokens", tmp_path / "batch", "--out", tmp_path / stage, "--stage", stage])
        logits[stage] = load_file(tmp_path / stage)["logits"]
    assert logits["eager"].equal(logits["load"]) and logits["load"].equal(logits["shard"])


def test_a_stage_without_sharding_takes_one_rank_and_no_adapter(tieshard, reference, tokens, tmp_path):
    for more in (["--ranks", 2], ["--adapter", tmp_path]):
        done = run([tieshard, "forward", reference / "llama_tied", "--tokens", tmp_path / "tokens.bin", "--out", tmp_path / "no",
                    "--stage", "load", *more], env=clean_environment())
        assert done.returncode == 2 and "--stage load" in done.stderr and "[bad-flag]" in done.stderr, done.stderr
