"""`train --config FILE` and `--dry-run`, from outside."""

import json

import numpy
import pytest
from running import clean_environment, read_metrics, run, run_well
from token_files import write_llmc, write_raw

SEQ = 16


@pytest.fixture
def config(tiny, tmp_path):
    """A file of flags, as a dictionary to be changed; write(more) gives its path."""
    tokens = write_raw(tmp_path / "tokens.bin", numpy.random.default_rng(7).integers(0, 101, 20 * SEQ))
    flags = {"model": str(tiny), "data": str(tokens), "out": str(tmp_path / "run"), "steps": 3, "seq": SEQ, "lr": 0.001,
             "no-export": True, "param-groups": ["no_decay"]}

    def write(**more):
        path = tmp_path / "flags.json"
        path.write_text(json.dumps({key: value for key, value in (flags | more).items() if value is not None}))
        return path

    return write


def test_the_file_gives_the_flags_and_the_line_wins(tieshard, config, tmp_path):
    run_well([tieshard, "train", "--config", config(), "--steps", 2], env=clean_environment())
    assert [line["lr"] for line in read_metrics(tmp_path / "run")] == [0.001] * 2
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["steps"] == 2 and kept["lr"] == 0.001 and kept["batch"] == 1 and kept["param-groups"] == ["no_decay"]
    assert kept["no-export"] is True and "config" not in kept and "resume" not in kept


def test_what_a_run_leaves_gives_the_same_run(tieshard, config, tmp_path):
    run_well([tieshard, "train", "--config", config()], env=clean_environment())
    again = [tieshard, "train", "--config", tmp_path / "run" / "config.json", "--out", tmp_path / "again"]
    run_well(again, env=clean_environment())
    first, second = ([line["loss"] for line in read_metrics(tmp_path / name)] for name in ("run", "again"))
    assert len(first) == 3 and first == second
    kept = [json.loads((tmp_path / name / "config.json").read_text()) | {"out": ""} for name in ("run", "again")]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("more", "parts"), [
    ({"step": 3}, ["flags.json, step", "did you mean steps"]),
    ({"no-export": "yes"}, ["no-export", "expected true or false"]),
    ({"steps": -1}, ["--steps", "from 0 to 1000000000, got -1"]),
    ({"model": None}, ["--model is required"])], ids=lambda value: str(value)[:20])
def test_a_file_that_cannot_be_used_is_refused(tieshard, config, tmp_path, more, parts):
    done = run([tieshard, "train", "--config", config(**more)], env=clean_environment())
    assert done.returncode == 2 and "[bad-flag]" in done.stderr, done.stderr
    assert [part for part in parts if part not in done.stderr] == [], done.stderr
    assert not (tmp_path / "run").exists()


def test_a_dry_run_shows_the_plan_and_writes_nothing(tieshard, config, tmp_path):
    before = sorted(tmp_path.iterdir())
    path = config()
    done = run_well([tieshard, "train", "--config", path, "--dry-run", "--ranks", 2], env=clean_environment())
    assert sorted(tmp_path.iterdir()) == sorted([*before, path])
    for part in ("data    raw uint16, 320 tokens, 20 samples", "steps   3 of 32 tokens on 2 ranks", "can be written",
                 "model.embed_tokens.weight", "nothing was started"):
        assert part in done.stdout, (part, done.stdout)


def spoil(config, tmp_path, name):
    """(flags of the file, code) of a run that is refused."""
    if name == "data":
        return {"data": str(write_llmc(tmp_path / "other.bin", [1, 500, 2] * 20))}, "token-out-of-range"
    if name == "group":
        return {"param-groups": "no_such_name:lr=1"}, "unknown-parameter"
    if name == "no_target":
        (tmp_path / "mask").write_bytes(bytes(320))
        return {"label-mask": str(tmp_path / "mask")}, "data-too-short"
    if name == "eval_data":  # behind the first samples
        return {"eval-data": str(write_llmc(tmp_path / "eval.bin", [1, 2] * 140 + [500, 2] * 10))}, "token-out-of-range"
    if name == "eval_mask":
        data = write_llmc(tmp_path / "eval.bin", [1, 2] * 16)
        (tmp_path / "mask").write_bytes(bytes(32))
        return {"eval-data": str(data), "eval-label-mask": str(tmp_path / "mask")}, "data-too-short"
    if name == "dim":
        return {"dim": ["no.such.name=0"]}, "unknown-parameter"
    if name == "out":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").write_text("of another run\n")
        return {}, "output-exists"
    return {name: {"schedule": "inverse-sqrt", "resume": str(tmp_path), "model": str(tmp_path), "lora": "r=4,alpha=8,targets=x_proj",
                   "document-separator": 200, "documents": True}[name]}, {
        "schedule": "bad-flag", "resume": "no-checkpoint", "model": "config-missing", "lora": "unknown-target",
        "document-separator": "bad-flag", "documents": "bad-flag"}[name]


@pytest.mark.parametrize("name", ["data", "no_target", "eval_data", "eval_mask", "dim", "group", "out", "schedule", "resume", "model", "lora", "document-separator", "documents"])
def test_a_dry_run_refuses_what_the_run_would_refuse(tieshard, config, tmp_path, name):
    more, code = spoil(config, tmp_path, name)
    path = config(**more)
    dry = run([tieshard, "train", "--config", path, "--dry-run"], env=clean_environment())
    real = run([tieshard, "train", "--config", path], env=clean_environment())
    assert f"[{code}]" in dry.stderr and f"[{code}]" in real.stderr, (dry.stderr, real.stderr)
    assert dry.returncode == real.returncode == 2


def test_a_dry_run_of_an_adapter_says_what_is_trained(tieshard, config):
    done = run_well([tieshard, "train", "--config", config(**{"param-groups": "lora_A:lr=0.1", "lora": "r=4,alpha=8,targets=q_proj"}),
                     "--dry-run"], env=clean_environment())
    assert "lora    3 modules and 0 whole parameters are trained" in done.stdout, done.stdout
