"""`tieshard train` saves as it goes, stops on a signal, and goes on; PyTorch's reader loads what it saved."""

import json
import os
import re
import signal
import sys
import time

import numpy
import pytest
from running import ROOT, clean_environment, read_metrics, run, run_well, wait_for
from safetensors import safe_open

STEPS, SEQ = 6, 16
LONG = 60_000  # steps that no machine finishes within a test


@pytest.fixture
def train(tieshard, tiny, tmp_path):
    """The command of a run in tmp_path/NAME."""
    numpy.random.default_rng(3).integers(0, 101, 40 * SEQ).astype("<u2").tofile(tmp_path / "tokens.bin")

    def command(name, *flags, steps=STEPS):
        return [tieshard, "train", "--model", tiny, "--data", tmp_path / "tokens.bin", "--out", tmp_path / name, "--steps",
                steps, "--lr", 1e-3, "--seq", SEQ, "--batch", 2, *flags]

    return command


def losses(out):
    return [(line["step"], line["loss"]) for line in read_metrics(out)]


def checkpoint(out, step):
    return out / "checkpoints" / f"step-{step:09d}"


def ends(process, limit=60):
    out, err = process.communicate(timeout=limit)
    return process.returncode, out + err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_signal_saves_ends_well_and_the_same_line_goes_on(train, processes, tmp_path, number, ranks):
    """To the launcher alone, as a batch script's trap sends it."""
    command = train("run", "--ranks", ranks, "--resume", steps=LONG)
    process = processes(command, env=clean_environment())
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 60, "the first step")
    process.send_signal(number)
    code, text = ends(process)
    assert code == 0, text
    stopped = int(re.search(rf"stopped after step (\d+)/{LONG} by {number.name}: saved", text).group(1))
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text().strip() == f"step-{stopped:09d}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_by"] == number and len(summary["losses"]) == stopped
    assert not (tmp_path / "run" / "export").exists()
    again = run_well(train("run", "--ranks", ranks, "--resume", steps=stopped + 2), env=clean_environment())
    assert f"step {stopped}," in again.stdout, again.stdout
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(1, stopped + 3))
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()


def test_a_signal_to_every_process_at_once_saves_too(train, processes, tmp_path):
    """As Slurm sends it: the ranks get it from the scheduler and from the launcher."""
    process = processes(train("run", "--ranks", 2, steps=LONG), env=clean_environment())
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 60, "the first step")
    os.killpg(process.pid, signal.SIGTERM)
    code, text = ends(process)
    assert code == 0 and "by SIGTERM: saved" in text, text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("wait", [0.02, 0.1, 0.2, 0.4])
def test_a_signal_while_a_run_is_being_started_is_answered_after_its_first_step(train, processes, number, wait):
    process = processes(train("run", "--ranks", 2, steps=LONG), env=clean_environment())
    time.sleep(wait)
    process.send_signal(number)
    code, text = ends(process)
    assert code == 0 and f"by {number.name}: saved" in text, text


@pytest.mark.parametrize("flags", [[], ["--async-save", "wait"], ["--shard-dim", "first"], ["--optimizer", "sgd", "--momentum", 0.9],
                                   ["--param-dtype", "bfloat16", "--bf16-update", "master-weights"],
                                   ["--param-dtype", "bfloat16", "--bf16-update", "stochastic-rounding"],
                                   ["--lora", "r=4,alpha=8,targets=q_proj,v_proj,dropout=0.2"],
                                   ["--replicas", 2]], ids=lambda flags: "-".join(map(str, flags[:4])) or "plain")
def test_a_run_in_two_jobs_is_the_run_in_one(train, tmp_path, flags):
    ranks = 4 if "--replicas" in flags else 2
    common = ["--ranks", ranks, "--save-every", 1, "--keep", 0, *flags]
    run_well(train("whole", *common), env=clean_environment())
    run_well(train("parts", *common, "--no-export", steps=3), env=clean_environment())
    again = run_well(train("parts", *common, "--resume", "--verify"), env=clean_environment())
    assert "--steps was 3, is 6" in again.stderr, again.stderr
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    kind = "adapter/adapter_model" if "--lora" in flags else "export/model"
    assert (tmp_path / "parts" / f"{kind}.safetensors").read_bytes() == (tmp_path / "whole" / f"{kind}.safetensors").read_bytes()


def test_a_time_between_saves(train, tmp_path):
    run_well(train("run", "--save-every", "1h", "--keep", 0), env=clean_environment())
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")) == [f"step-{STEPS:09d}"]
    run_well(train("often", "--save-every", "1s", "--keep", 0, steps=400), env=clean_environment())
    saved = sorted((tmp_path / "often" / "checkpoints").glob("step-*"))
    assert saved[-1].name == "step-000000400"


@pytest.mark.parametrize("flags, parts", [
    (["--save-every", "0"], ["--save-every", "got 0"]),
    (["--save-every", ""], ["--save-every", "a number of steps (200) or a time"]),
    (["--save-every", "often"], ["--save-every", "a number of steps (200) or a time (90s, 30m, 2h), got often"]),
    (["--save-every", "5d"], ["--save-every", "got 5d"]),
    (["--keep", "-1"], ["--keep", "got -1"]),
    (["--async-save", "yes"], ["--async-save", "got yes"]),
    (["--export-dtype", "int8"], ["--export-dtype", "int8"]),
    (["--resume", "/nowhere"], ["no-checkpoint", "/nowhere"]),
])
def test_flags_that_cannot_be_used(train, tmp_path, flags, parts):
    result = run(train("run", *flags), env=clean_environment())
    assert result.returncode == 2, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / "metrics.jsonl").exists()


DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def assembled(directory):
    """Whole tensors of a checkpoint by numpy alone, from what its headers say."""
    whole = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            info = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                block = file.get_tensor(name)
                target = whole.setdefault(name, numpy.full(info[name]["shape"], numpy.nan, block.dtype))
                place = tuple(slice(at, at + size) for at, size in zip(info[name]["saved_offsets"], block.shape))
                target[place] = block
    return whole


@pytest.mark.parametrize("ranks, readers", [(2, 3), (3, 1), (1, 2)])
def test_pytorchs_reader_loads_parameters_and_moments_at_another_world_size(train, tmp_path, ranks, readers):
    run_well(train("run", "--ranks", ranks, "--save-every", STEPS, "--no-export"), env=clean_environment())
    saved = checkpoint(tmp_path / "run", STEPS)
    expected = assembled(saved)
    assert "model.embed_tokens.weight.exp_avg_sq" in expected and "lm_head.weight" not in expected
    names = {name: ["float32", list(array.shape)] for name, array in expected.items()}
    (tmp_path / "names.json").write_text(json.dumps(names))
    run_well([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", readers, "--master-port", 0,
              "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
              ROOT / "tests" / "python" / "dcp_reader.py", saved, tmp_path / "names.json", tmp_path / "read.safetensors"],
             env=clean_environment())
    with safe_open(tmp_path / "read.safetensors", framework="np") as read:
        assert set(read.keys()) == set(expected)
        for name, array in expected.items():
            assert not numpy.isnan(array).any(), name
            assert numpy.array_equal(read.get_tensor(name), array), name


def test_the_manifest_names_ties_with_their_evidence_and_every_file(train, tmp_path):
    run_well(train("run", "--ranks", 2, "--save-every", STEPS, "--no-export"), env=clean_environment())
    saved = checkpoint(tmp_path / "run", STEPS)
    manifest = json.loads((saved / "manifest.json").read_text())
    assert {"canonical": "model.embed_tokens.weight", "alias": "lm_head.weight", "evidence": "config-flag"} in manifest["ties"]
    assert {file["name"] for file in manifest["files"]} == {path.name for path in saved.iterdir()} - {"manifest.json"}
    assert "config.json" in {file["name"] for file in manifest["files"]}
    for file in manifest["files"]:
        assert (saved / file["name"]).stat().st_size == file["bytes"]
