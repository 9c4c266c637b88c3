"""One format: the C++ trainer goes on from what Python saved and the other way round, and the programs and torch read both."""

import json
import shutil
import sys

import numpy
import pytest
import tieshard
import torch
import torch.distributed as dist
from module_location import ROOT
from module_models import class_of
from module_ranks import run_on_ranks
from module_training import assert_same, build, last_dim, whole_state
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(ROOT / "tests" / "python"))
sys.path.insert(0, str(ROOT / "bench"))

from running import clean_environment, read_metrics, run_well
from two_sides import bin_dir

NAMES = ("llama_tied", "gpt2", "gpt_oss_tied")
SEQ, RANKS, VOCAB, LR = 16, 2, 67, 1e-3


def program(*words, **options):
    path = bin_dir() / "tieshard"
    assert path.is_file(), f"{path} is not there: build it (make build), or set TIESHARD_BIN_DIR"
    return run_well([path, *words], env=clean_environment(), **options)


@pytest.fixture(scope="module")
def quiet(models, tmp_path_factory):
    """The models, without dropout: the two sides draw from their generators in another order."""
    folder = tmp_path_factory.mktemp("quiet")
    for name in NAMES:
        shutil.copytree(models / name, folder / name)
        config = json.loads((folder / name / "config.json").read_text())
        changed = {key: 0.0 if key.endswith("pdrop") else value for key, value in config.items()}
        (folder / name / "config.json").write_text(json.dumps(changed))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tokens.bin"
    numpy.random.default_rng(7).integers(3, VOCAB, 4 * RANKS * SEQ).astype("<u2").tofile(path)
    return path


def cpp_train(models, data, name, out, steps, *more):
    program("train", "--model", models / name, "--data", data, "--out", out, "--ranks", RANKS, "--steps", steps, "--lr", LR, "--batch", 1,
            "--seq", SEQ, "--threads", 1, "--no-shuffle", "--save-every", 2, "--no-export", *more)
    return [line["loss"] for line in read_metrics(out)]


def sharded(models, name, placement=None):
    """As the C++ trainer has it: fp32 values of the checkpoint, AdamW."""
    model = class_of(name).from_pretrained(models / name).train()
    if dist.is_initialized():
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), shard_placement_fn=placement)
    return model, torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)


def train_on(model, optimizer, data, steps):
    """Steps over the samples that the C++ trainer takes: its losses, the mean over the ranks."""
    tokens = torch.from_numpy(numpy.fromfile(data, "<u2").astype(numpy.int64)).reshape(-1, SEQ)
    losses = []
    for step in steps:
        ids = tokens[step * RANKS + dist.get_rank()][None]
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def python_first(models, data, folder):
    """Two steps here, saved, and two more, for the losses that the C++ trainer is to come to."""
    for name in NAMES:
        model, optimizer = sharded(models, name, last_dim if name == "gpt2" else None)
        train_on(model, optimizer, data, range(2))
        tieshard.save(model, optimizer, folder / name, step=2, samples=2 * RANKS, source=models / name)
        state = whole_state(model, optimizer)
        losses = train_on(model, optimizer, data, range(2, 4))
        if dist.get_rank() == 0:
            (folder / name / "losses.json").write_text(json.dumps(losses))
            torch.save(state, folder / name / "expected.pt")


@pytest.fixture(scope="module")
def saved(quiet, data, tmp_path_factory):
    """Runs of two ranks that Python saved after two steps."""
    folder = tmp_path_factory.mktemp("saved")
    run_on_ranks(RANKS, python_first, quiet, data, folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_cpp_trainer_goes_on_from_a_save_of_python(quiet, data, saved, tmp_path, name):
    losses = cpp_train(quiet, data, name, tmp_path / "out", 4, "--resume", saved / name)
    expected = json.loads((saved / name / "losses.json").read_text())
    assert losses == pytest.approx(expected, abs=2e-5) and len(losses) == 2


def python_second(models, data, folder):
    for name in NAMES:
        model, optimizer = sharded(models, name)
        resumed = tieshard.resume(model, optimizer, folder / name, verify=True)
        assert (resumed.step, resumed.samples, resumed.tokens) == (2, 2 * RANKS, 2 * RANKS * SEQ)
        assert resumed.flags["--seq"] == str(SEQ) and resumed.generators_restored and not resumed.findings
        state = whole_state(model, optimizer)
        losses = train_on(model, optimizer, data, range(2, 4))
        if dist.get_rank() == 0:
            torch.save(state, folder / name / "got.pt")
            (folder / name / "losses.json").write_text(json.dumps(losses))


def test_python_goes_on_from_a_save_of_the_cpp_trainer(quiet, data, tmp_path):
    expected = {}
    for name in NAMES:
        cpp_train(quiet, data, name, tmp_path / name, 2)
        expected[name] = cpp_train(quiet, data, name, tmp_path / f"{name}-on", 4, "--resume", tmp_path / name)
    run_on_ranks(RANKS, python_second, quiet, data, tmp_path)
    for name in NAMES:
        program("reshard", tmp_path / name, tmp_path / f"{name}-one", "--ranks", 1)
        file, = (tmp_path / f"{name}-one").glob("*.safetensors")
        got = torch.load(tmp_path / name / "got.pt")
        stored = load_file(file)
        assert all(torch.equal(got[fqn], tensor) for fqn, tensor in stored.items()) and len(stored) > 20
        assert all(got[fqn] == 2 for fqn in got if fqn.endswith(".step"))
        assert json.loads((tmp_path / name / "losses.json").read_text()) == pytest.approx(expected[name], abs=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_programs_take_a_save_of_python(saved, tmp_path, name):
    program("doctor", saved / name)
    program("reshard", saved / name, tmp_path / "three", "--ranks", 3, "--verify")
    model, optimizer = build(name, seed=9)
    tieshard.resume(model, optimizer, tmp_path / "three", verify=True)
    expected = torch.load(saved / name / "expected.pt")
    assert_same(whole_state(model, optimizer), expected)
    program("export", saved / name, tmp_path / "model")
    exported = class_of(name).from_pretrained(tmp_path / "model")
    ids = torch.arange(1, 13).reshape(1, 12)
    assert torch.equal(exported.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_torchs_reader_takes_a_save_of_python(saved):
    import torch.distributed.checkpoint as dcp

    expected = torch.load(saved / "llama_tied" / "expected.pt")
    names = {name: tensor for name, tensor in expected.items() if name != "lm_head.weight" and not name.endswith(".step")}
    state = {name: torch.full_like(tensor, -7) for name, tensor in names.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(saved / "llama_tied" / "checkpoints" / "step-000000002")))
    assert all(torch.equal(state[name], tensor) for name, tensor in names.items())


def test_master_weights_of_the_cpp_trainer_are_refused(quiet, data, tmp_path):
    """torch's AdamW would leave them aside, and go on from values that were rounded."""
    cpp_train(quiet, data, "llama_tied", tmp_path / "out", 2, "--param-dtype", "bfloat16", "--bf16-update", "master-weights")
    model = class_of("llama_tied").from_pretrained(quiet / "llama_tied", dtype=torch.bfloat16)
    before = model.model.norm.weight.detach().clone()
    with pytest.raises(tieshard.InputError) as caught:
        tieshard.resume(model, torch.optim.AdamW(model.parameters(), lr=LR), tmp_path / "out")
    assert caught.value.code == "checkpoint-mismatch" and "master_weight" in caught.value.why
    assert torch.equal(model.model.norm.weight, before)
    assert tieshard.resume(model, None, tmp_path / "out").step == 2 and not torch.equal(model.model.norm.weight, before)
