"""What tieshard.save and tieshard.resume refuse, by name, and what a damaged or an interrupted save leaves."""

import json
import subprocess
import sys

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_ranks import run_on_ranks
from module_training import build, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def trained(name="llama_tied", optimizer="adamw", steps=1, **options):
    model, stepper = build(name, optimizer, **options)
    train(model, stepper, range(steps))
    return model, stepper


@pytest.fixture
def run(tmp_path):
    """A run that saved after steps 1 and 2; its folder."""
    model, optimizer = trained()
    tieshard.save(model, optimizer, tmp_path / "run", step=1)
    train(model, optimizer, [1])
    tieshard.save(model, optimizer, tmp_path / "run", step=2)
    return tmp_path / "run"


def checkpoint(run, step):
    return run / "checkpoints" / f"step-{step:09d}"


def refused(kind, code, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert caught.value.code == code and caught.value.fix
    return str(caught.value)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(run):
    model, optimizer = build("llama_tied", seed=8)
    assert tieshard.resume(model, optimizer, run).step == 2
    file = next(checkpoint(run, 2).glob("shard-*"))
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    assert tieshard.resume(model, optimizer, run).step == 2  # of the same size: only the hashes tell
    resumed = tieshard.resume(model, optimizer, run, verify=True)
    assert resumed.step == 1 and [warning.code for warning in resumed.warnings] == ["checkpoint-incomplete"]
    assert file.name in str(resumed.warnings[0])
    file.write_bytes(data[:-8])
    assert tieshard.resume(model, optimizer, run).step == 1
    assert file.name in refused(tieshard.InputError, "checkpoint-incomplete", tieshard.resume, model, optimizer, checkpoint(run, 2))


def test_another_model_dtype_or_optimizer_is_refused_and_nothing_is_changed(run, tmp_path):
    others = (("llama_untied", {}, "lm_head.weight: a weight of its own here, tied to model.embed_tokens.weight there"),
              ("gpt2", {}, "transformer.wte.weight: is not in the checkpoint"),
              ("llama_tied", {"optimizer": "sgd"}, "expected state of the optimizer sgd, got adamw"))
    for name, options, said in others:
        model, optimizer = build(name, seed=8, **options)
        before = {fqn: tensor.clone() for fqn, tensor in model.state_dict().items()}
        assert said in refused(tieshard.InputError, "checkpoint-mismatch", tieshard.resume, model, optimizer, run)
        assert all(torch.equal(tensor, before[fqn]) for fqn, tensor in model.state_dict().items()) and not optimizer.state
    model, _ = build("llama_tied")
    model = model.bfloat16()
    assert "expected BF16, got F32" in refused(tieshard.InputError, "checkpoint-mismatch", tieshard.resume, model, None, run)
    refused(tieshard.InputError, "no-checkpoint", tieshard.resume, model, None, tmp_path / "nothing")


def test_state_that_nothing_takes_is_said(run):
    model, _ = build("llama_tied")
    layers = torch.optim.AdamW(model.model.layers.parameters(), lr=1e-2)
    warning, = tieshard.resume(model, layers, run).warnings
    assert warning.code == "checkpoint-mismatch" and "model.embed_tokens.weight" in warning.why and "layers" not in warning.why


OPTIONS = ((torch.optim.AdamW, {}, {"amsgrad": True}, "needs max_exp_avg_sq (amsgrad is on)"),
           (torch.optim.Adam, {"amsgrad": True}, {}, "would not use max_exp_avg_sq (amsgrad is off)"),
           (torch.optim.SGD, {"momentum": 0.9}, {}, "would not use momentum_buffer (momentum is off)"),
           (torch.optim.RMSprop, {}, {"momentum": 0.9, "centered": True}, "needs grad_avg (centered is on), which was not saved; it needs mom"),
           (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, {"centered": True}, "would not use momentum_buffer (momentum is off)"))


@pytest.mark.parametrize(("kind", "saved", "here", "said"), OPTIONS, ids=range(len(OPTIONS)))
def test_an_optimizer_with_other_options_is_refused_and_unchanged(tmp_path, kind, saved, here, said):
    model, _ = build("llama_tied")
    optimizer = kind(model.parameters(), lr=1e-2, **saved)
    train(model, optimizer, [0])
    tieshard.save(model, optimizer, tmp_path, step=1)
    other = kind(model.parameters(), lr=1e-2, **here)
    assert said in refused(tieshard.InputError, "checkpoint-mismatch", tieshard.resume, model, other, tmp_path) and not other.state
    again = kind(model.parameters(), lr=1e-2, **saved)
    tieshard.resume(model, again, tmp_path)
    train(model, again, [1])


def test_an_optimizer_that_the_format_cannot_say_is_refused(tmp_path):
    model, _ = build("llama_tied")
    for make, said in ((torch.optim.NAdam, "mu_product"), (torch.optim.Adafactor, "row_var")):
        optimizer = make(model.parameters(), lr=1e-2)
        train(model, optimizer, [0])
        assert said in refused(tieshard.UsageError, "optimizer-parameter", tieshard.save, model, optimizer, tmp_path, step=1)
    stranger = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    refused(tieshard.UsageError, "optimizer-parameter", tieshard.save, model, stranger, tmp_path, step=1)
    assert not (tmp_path / "checkpoints").exists()


class Experts(torch.nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.experts = experts


def test_experts_that_were_saved_one_by_one_are_said_to_be_that(tmp_path):
    """As the C++ trainer saves Mixtral's, whose module here has all of a layer in one parameter."""
    tieshard.save(Experts(torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))), None, tmp_path, step=1)
    stacked = torch.nn.Module()
    stacked.gate_up_proj = torch.nn.Parameter(torch.zeros(2, 2, 2))
    message = refused(tieshard.InputError, "checkpoint-mismatch", tieshard.resume, Experts(stacked), None, tmp_path)
    assert "one by one" in message and "tieshard export" in message
    assert "one by one" not in refused(tieshard.InputError, "checkpoint-mismatch", tieshard.resume, torch.nn.Linear(2, 2), None, tmp_path)


BAD = ({"step": -1}, {"step": 1.5}, {"samples": -1}, {"tokens": "7"}, {"keep": -1}, {"flags": {"a": 1}}, {"flags": ["a"]})


@pytest.mark.parametrize("wrong", BAD, ids=str)
def test_an_argument_that_cannot_be_is_refused_before_anything_is_written(tmp_path, wrong):
    message = refused(tieshard.InputError, "bad-flag", tieshard.save, torch.nn.Linear(2, 2), None, tmp_path / "run", **{"step": 1, **wrong})
    assert next(iter(wrong)) in message and not (tmp_path / "run").exists()


class Counting(torch.nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


def test_state_that_is_no_tensor_is_named(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), Counting(2, 2))
    saved = tieshard.save(module, None, tmp_path, step=1).findings
    for finding, in (saved, tieshard.resume(module, None, tmp_path).warnings):
        assert finding.level == "warning" and "1 (Counting)" in finding.why and "0 (" not in finding.why
    assert not tieshard.save(torch.nn.Linear(2, 2), None, tmp_path / "plain", step=1).findings


def test_a_step_below_the_optimizers_is_refused(tmp_path):
    model, optimizer = trained(steps=2)
    assert "got 2" in refused(tieshard.UsageError, "wrong-state", tieshard.save, model, optimizer, tmp_path, step=1)


def test_a_save_that_fails_leaves_the_ones_before_it(run, monkeypatch):
    from tieshard import _core

    def fail(*_arguments):
        raise OSError("the disk is gone")

    model, optimizer = trained(steps=3)
    monkeypatch.setattr(_core, "write_shard_file", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        tieshard.save(model, optimizer, run, step=3)
    monkeypatch.undo()
    assert {path.name for path in (run / "checkpoints").iterdir()} == {".lock", "latest", "step-000000001", "step-000000002"}
    tieshard.save(model, optimizer, run, step=3)  # the lock was given back
    assert (run / "checkpoints" / "latest").read_text() == "step-000000003\n"


def test_old_ones_go_and_a_line_that_was_left_is_set_aside(run):
    model, optimizer = trained(steps=1)
    report = tieshard.save(model, optimizer, run, step=1, keep=1)
    assert [path.name for path in report.set_aside] == ["left-step-000000002"] and report.set_aside[0].is_dir()
    for step in (2, 3):
        train(model, optimizer, [step])
        tieshard.save(model, optimizer, run, step=step, keep=1)
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-000000003"]


def test_a_directory_that_another_job_writes_is_refused(run):
    from tieshard import _core

    model, optimizer = trained()
    other = _core.SaveDirectory(run / "checkpoints", 7)
    refused(tieshard.InputError, "directory-in-use", tieshard.save, model, optimizer, run, step=1)
    other.release()
    tieshard.save(model, optimizer, run, step=1)


def test_the_generators_are_of_the_rank_that_saved(run):
    model, optimizer = build("llama_tied")
    tieshard.save(model, optimizer, run, step=3)
    expected = torch.rand(4)
    assert tieshard.resume(model, optimizer, run).generators_restored and torch.equal(torch.rand(4), expected)
    assert not tieshard.resume(model, optimizer, run, generators=False).generators_restored and not torch.equal(torch.rand(4), expected)
    generator, = json.loads((checkpoint(run, 3) / "trainer.json").read_text())["generators"]
    assert len(generator) == 2 * len(torch.get_rng_state())


class Grid(torch.nn.Module):
    def __init__(self, placements, shape):
        super().__init__()
        mesh = init_device_mesh("cpu", shape)
        self.weight = torch.nn.Parameter(distribute_tensor(torch.arange(64.0).reshape(8, 8), mesh, placements))


def check_placements(folder):
    """Grids have no word in the format; replicas and shards on either axis have."""
    message = refused(tieshard.UsageError, "bad-shard-dim", tieshard.save, Grid([Shard(0), Shard(1)], (2, 2)), None, folder / "no", step=0)
    assert "weight" in message and not (folder / "no").exists()
    for index, placements in enumerate(([Replicate(), Shard(1)], [Shard(0), Replicate()], [Replicate(), Replicate()])):
        tieshard.save(Grid(placements, (2, 2)), None, folder / str(index), step=0)
        for others in ([Shard(1), Shard(0)], [Shard(0), Replicate()]):
            other = Grid(others, (2, 2))
            with torch.no_grad():
                other.weight.zero_()
            tieshard.resume(other, None, folder / str(index))
            assert torch.equal(other.weight.full_tensor(), torch.arange(64.0).reshape(8, 8))


def check_errors_of_one(folder):
    """What one rank cannot do ends the call on all."""
    model, optimizer = trained()
    if dist.get_rank() == 2:
        optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(tieshard.Error) as caught:
        tieshard.save(model, optimizer, folder / "one", step=1)
    assert caught.value.code == ("optimizer-parameter" if dist.get_rank() == 2 else "peer-failed")
    assert dist.get_rank() == 2 or "rank 2 says" in str(caught.value)
    with pytest.raises(tieshard.UsageError, match="wrong-state"):
        tieshard.save(build("llama_tied")[0], None, folder / "one", step=dist.get_rank())


def check_directories_of_their_own(folder):
    """Two saves of one name, on disks of the ranks' own: no rank takes a part of either."""
    for place in "xy":
        tieshard.save(build("llama_tied", seed=ord(place))[0], None, folder / place, step=1)
    model, _ = build("llama_tied", seed=3)
    before = model.state_dict()["model.norm.weight"].full_tensor().clone()
    own = folder / ("x" if dist.get_rank() == 0 else "y")
    message = refused(tieshard.InputError, "saves-mixed", tieshard.resume, model, None, own, verify=True)
    assert "on rank 1" in message and torch.equal(model.state_dict()["model.norm.weight"].full_tensor(), before)


def on_four(folder):
    check_placements(folder)
    check_errors_of_one(folder)
    check_directories_of_their_own(folder)


def test_of_ranks(tmp_path):
    run_on_ranks(4, on_four, tmp_path)


def test_a_weight_whose_file_was_cut_meanwhile_is_not_saved_as_zeros(tmp_path):
    """load() maps large parts: pages that the file lost read as zeros, and a save or an export of them is refused."""
    script = """
import os, sys, tieshard, torch
from safetensors.torch import save_file
folder = sys.argv[1]
save_file({"weight": torch.ones(1024, 1024)}, folder + "/model.safetensors")
open(folder + "/config.json", "w").write("{}")
model = torch.nn.Linear(1024, 1024, bias=False, device="meta")
assert tieshard.load(model, folder).bytes_mapped
os.truncate(folder + "/model.safetensors", 4096)
for call in (lambda: tieshard.save(model, None, folder + "/run", step=0), lambda: tieshard.export_hf(model, folder + "/out")):
    try:
        call()
    except tieshard.Error as error:
        print(error.code)
print(sorted(os.listdir(folder)), os.listdir(folder + "/run/checkpoints"))
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["file-changed", "file-changed", "['config.json', 'model.safetensors', 'run'] ['.lock']"], done.stderr
