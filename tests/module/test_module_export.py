"""tieshard.export_hf: the files that save_pretrained writes, of plain and of sharded modules, without gathering them."""

import json
import pathlib
import subprocess
import sys

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_models import CONFIGS, class_of, config_of
from module_ranks import run_on_ranks
from module_training import build, last_dim
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

IDS = torch.arange(1, 13).reshape(1, 12)


def files_of(folder):
    """Tensors of all weights files of a directory, by name."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            assert name not in tensors
            tensors[name] = tensor
    return tensors


def assert_equal_files(ours, theirs):
    got, expected = files_of(ours), files_of(theirs)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


def logits(model):
    more = {"decoder_input_ids": IDS} if model.config.model_type == "t5" else {}
    with torch.no_grad():
        return model.eval()(input_ids=IDS, **more).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_plain_module_leaves_as_save_pretrained_writes_it(tmp_path, name, dtype):
    torch.manual_seed(3)
    model = class_of(name).from_config(config_of(name)).to(dtype)
    model.save_pretrained(tmp_path / "theirs")
    report = tieshard.export_hf(model, tmp_path / "ours")
    assert_equal_files(tmp_path / "ours", tmp_path / "theirs")
    assert report.files == ["model.safetensors"] and report.tensors == len(files_of(tmp_path / "theirs"))
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {path.name for path in (tmp_path / "theirs").iterdir()}
    for file in ("config.json", "generation_config.json"):
        if (tmp_path / "theirs" / file).exists():
            assert json.loads((tmp_path / "ours" / file).read_text()) == json.loads((tmp_path / "theirs" / file).read_text())
    again, peer = (class_of(name).from_pretrained(tmp_path / each, dtype=dtype) for each in ("ours", "theirs"))
    assert torch.equal(logits(again), logits(peer))


def refuse_to_gather(*_arguments, **_options):
    raise AssertionError("a whole parameter was gathered")


def check_exports(folder, cases):
    """What build() makes on the ranks, exported, with all that gathers a whole parameter forbidden."""
    DTensor.full_tensor = refuse_to_gather
    DTensor.redistribute = refuse_to_gather
    for label, (name, placed, options) in cases.items():
        model, _ = build(name, **placed)
        options = dict(options)
        report = tieshard.export_hf(model, folder / label, **options)
        assert report.directory == folder / label and not report.findings


ON_TWO = {"two-first": ("llama_tied", {}, {}), "two-last": ("llama_tied", {"placement": last_dim}, {"max_shard_bytes": 20000}),
          "two-bf16": ("gpt_oss_tied", {"placement": last_dim}, {"dtype": torch.bfloat16}),
          "two-moe": ("mixtral", {"placement": last_dim}, {})}
ON_THREE = {"three": ("llama_untied", {}, {"max_shard_bytes": 20000}), "three-gpt2": ("gpt2", {}, {}), "three-t5": ("t5", {}, {}),
            "three-moe": ("qwen3_moe", {}, {}), "three-gpt-oss": ("gpt_oss_tied", {}, {})}
ON_FOUR = {"four": ("llama_tied", {"replicas": 2}, {}),
           "four-last": ("mixtral", {"replicas": 2, "placement": last_dim}, {"dtype": torch.float16})}


@pytest.mark.parametrize(("ranks", "cases"), [(2, ON_TWO), (3, ON_THREE), (4, ON_FOUR)], ids=["two", "three", "four"])
def test_a_sharded_module_leaves_as_the_whole_one_would(tmp_path, ranks, cases):
    run_on_ranks(ranks, check_exports, tmp_path, cases)
    for label, (name, _, options) in cases.items():
        whole, _ = build(name)
        whole = whole.to(options.get("dtype", torch.float32))
        whole.save_pretrained(tmp_path / f"{label}-theirs")
        assert_equal_files(tmp_path / label, tmp_path / f"{label}-theirs")
        count = len(list((tmp_path / label).glob("*.safetensors")))
        assert (count > 1) == ("max_shard_bytes" in options) == (tmp_path / label / "model.safetensors.index.json").exists()
        again, peer = (class_of(name).from_pretrained(tmp_path / each, dtype=whole.dtype) for each in (label, f"{label}-theirs"))
        assert torch.equal(logits(again), logits(peer))


class Weights(torch.nn.Module):
    """Tensors under any placement, of none of the known architectures."""

    def __init__(self, placements, mesh):
        super().__init__()
        for name, shape in SHAPES.items():
            fitting = [p if p.is_replicate() or p.dim < len(shape) else Replicate() for p in placements]
            self.register_parameter(name, torch.nn.Parameter(distribute_tensor(values_of(shape), mesh, fitting)))


SHAPES = {"a": (7, 5), "b": (3,), "c": (1, 9), "d": (5, 6, 8), "e": (16, 4), "f": ()}


def values_of(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1


def check_placements(folder):
    """Uneven parts, empty ones and grids, on meshes of one and two axes."""
    one = [Replicate(), Shard(0), Shard(1), Shard(2)]
    for shape in ((4,), (2, 2)):
        mesh = init_device_mesh("cpu", shape)
        for placements in [[p] for p in one] if len(shape) == 1 else [[p, q] for p in one for q in one]:
            tieshard.export_hf(Weights(placements, mesh), folder / "out", replace=True)
            for name, tensor in load_file(folder / "out" / "model.safetensors").items():
                assert torch.equal(tensor, values_of(SHAPES[name])), (placements, name)
            dist.barrier()


def test_any_placement_leaves_whole(tmp_path):
    run_on_ranks(4, check_placements, pathlib.Path(tmp_path))


def test_a_source_gives_the_tokenizer_and_what_is_there_stays_unless_it_is_to_go(models, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_text("not to be copied")
    model = class_of("llama_tied").from_pretrained(models / "llama_tied")
    tieshard.export_hf(model, tmp_path / "out", source=source)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    with pytest.raises(tieshard.InputError, match="output-exists"):
        tieshard.export_hf(model, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    tieshard.export_hf(model, tmp_path / "out", replace=True)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before and not (tmp_path / "out" / "tokenizer.json").exists()


def test_values_that_become_infinite_are_named(tmp_path):
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[1, 2] = 1e6
    finding, = tieshard.export_hf(model, tmp_path / "out", dtype=torch.float16).findings
    assert finding.code == "not-finite" and finding.level == "warning" and "weight" in str(finding)


def test_a_tie_that_was_lost_is_refused(models, tmp_path):
    model = class_of("llama_tied").from_pretrained(models / "llama_tied")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(tieshard.errors.SharedObjectError) as caught:
        tieshard.export_hf(model, tmp_path / "out")
    assert caught.value.code == "tie-not-shared" and "lm_head.weight" in caught.value.where and not (tmp_path / "out").exists()


def test_what_transformers_computes_on_the_way_out_is_refused(models, tmp_path):
    from transformers.core_model_loading import Transpose, WeightConverter

    model = class_of("llama_tied").from_pretrained(models / "llama_tied")
    model._weight_conversions = [WeightConverter("q_proj.weight", "q_proj.weight", operations=[Transpose(0, 1)])]
    with pytest.raises(tieshard.UsageError) as caught:
        tieshard.export_hf(model, tmp_path / "out")
    assert caught.value.code == "not-convertible" and "q_proj" in str(caught.value) and not (tmp_path / "out").exists()


def test_a_module_without_bytes_is_refused(models, tmp_path):
    with torch.device("meta"):
        model = class_of("llama_tied").from_config(config_of("llama_tied"))
    with pytest.raises(tieshard.UsageError, match="still-on-meta"):
        tieshard.export_hf(model, tmp_path / "out")


def test_a_renamed_weight_leaves_under_the_name_of_the_files(models, tmp_path):
    """Loaded from files with other names: they go out under these again, as save_pretrained does it."""
    stored = load_file(models / "gpt2" / "model.safetensors")
    (tmp_path / "in").mkdir()
    save_file({name.removeprefix("transformer."): tensor for name, tensor in stored.items()}, tmp_path / "in" / "model.safetensors",
              metadata={"format": "pt"})
    (tmp_path / "in" / "config.json").write_bytes((models / "gpt2" / "config.json").read_bytes())
    model = class_of("gpt2").from_pretrained(tmp_path / "in")
    model.save_pretrained(tmp_path / "theirs")
    tieshard.export_hf(model, tmp_path / "ours")
    assert_equal_files(tmp_path / "ours", tmp_path / "theirs")


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def test_an_adapter_of_peft_is_to_be_merged_first(models, tmp_path):
    peft = pytest.importorskip("peft")
    base = class_of("llama_tied").from_pretrained(models / "llama_tied")
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    for each in (model, base, Around(base)):  # what PEFT gives, what it has changed in place, what holds that
        with pytest.raises(tieshard.UsageError, match="not-convertible") as caught:
            tieshard.export_hf(each, tmp_path / "out")
        assert "merge_and_unload" in caught.value.fix and not (tmp_path / "out").exists()
    merged = model.merge_and_unload()
    tieshard.export_hf(merged, tmp_path / "out")
    assert torch.equal(logits(class_of("llama_tied").from_pretrained(tmp_path / "out")), logits(merged))


def test_what_is_no_model_directory_is_not_replaced(tmp_path):
    model = torch.nn.Linear(3, 2)
    checkpoint = tieshard.save(model, None, tmp_path / "run", step=1).directory
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = {path for path in tmp_path.rglob("*")}
    for out in (tmp_path / "run", tmp_path / "run" / "checkpoints", checkpoint, tmp_path / "notes", tmp_path / "file"):
        with pytest.raises(tieshard.InputError, match="output-exists"):
            tieshard.export_hf(model, out, replace=True)
    assert {path for path in tmp_path.rglob("*")} == before
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        tieshard.export_hf(model, tmp_path / "empty", replace=True)


def test_a_dtype_may_be_named_and_what_is_none_is_refused(tmp_path):
    model = torch.nn.Linear(3, 2)
    for index, name in enumerate(("bfloat16", "torch.bfloat16")):
        tieshard.export_hf(model, tmp_path / str(index), dtype=name)
        assert files_of(tmp_path / str(index))["weight"].dtype == torch.bfloat16
    for wrong in ({"dtype": "bf17"}, {"dtype": torch.int8}, {"dtype": "nn"}, {"dtype": 16}, {"dtype": torch.nn}, {"max_shard_bytes": -1}):
        with pytest.raises(tieshard.InputError, match="bad-flag") as caught:
            tieshard.export_hf(model, tmp_path / "out", **wrong)
        assert next(iter(wrong)) in caught.value.where
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_an_export_that_finds_no_room_leaves_nothing(tmp_path):
    """Files are made at their full size: here the process may write none so large."""
    script = """
import os, resource, signal, sys, tieshard, torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = torch.nn.Linear(512, 512)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    tieshard.export_hf(model, sys.argv[1] + "/out")
except tieshard.PeerError as error:
    print(error.code)
print(os.listdir(sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["[]"], done.stdout + done.stderr
