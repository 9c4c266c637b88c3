"""inspect, ties, plan, check and doctor on a training checkpoint: the run, its checkpoints/, one step; and of a damaged one."""

import json
import shutil

import numpy
import pytest
from running import clean_environment, run, run_well


@pytest.fixture(scope="module")
def saved(tieshard, tiny, tmp_path_factory):
    """A run of two ranks that saved steps 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    numpy.random.default_rng(3).integers(0, 101, 200).astype("<u2").tofile(folder / "tokens.bin")
    run_well([tieshard, "train", "--model", tiny, "--data", folder / "tokens.bin", "--out", folder / "run", "--steps", 2, "--seq", 16,
              "--ranks", 2, "--save-every", 1, "--no-export"], env=clean_environment())
    return folder / "run"


@pytest.mark.parametrize("part", ["", "checkpoints", "checkpoints/step-000000001"])
def test_the_run_its_checkpoints_and_one_step_are_shown(tieshard, saved, part):
    step = 1 if part.endswith("1") else 2
    shown = run_well([tieshard, "inspect", saved / part]).stdout
    assert f"a training checkpoint of step {step}" in shown and "dp_shard 2; optimizer adamw" in shown
    assert "lm_head.weight = model.embed_tokens.weight  (manifest.json: config-flag" in run_well([tieshard, "ties", saved / part]).stdout
    document = json.loads(run_well([tieshard, "doctor", saved / part, "--ranks", 3, "--deep", "--json"]).stdout)
    assert document["verdict"] == "ok" and document["family"] == "llama" and document["ranks"] == 3
    assert sum((rank["last"] - rank["first"] + 1) * rank["elements"] for rank in document["per_rank"]) == document["parameters"]
    names = json.loads(run_well([tieshard, "inspect", saved / part, "--json"]).stdout)
    assert names["step"] == step and "model.norm.weight" in [entry["name"] for entry in names["parameters"]]


def test_its_plan_is_that_of_its_export_and_its_ties_can_be_checked(tieshard, saved, tmp_path):
    run_well([tieshard, "export", saved, tmp_path / "model"])
    plans = [json.loads(run_well([tieshard, "plan", source, "--ranks", 3, "--json"]).stdout) for source in (saved, tmp_path / "model")]
    for plan in plans:
        for group in plan["groups"]:
            for alias in group["aliases"]:
                del alias["evidence"]
    assert plans[0] == plans[1]
    assert run([tieshard, "check", saved, "--expect", "tied"]).returncode == 0
    assert run([tieshard, "check", saved, "--expect", "untied"]).returncode == 1


def test_its_values_are_those_of_its_merge(tieshard, saved, tmp_path):
    run_well([tieshard, "merge", saved, tmp_path / "model"])
    for one, other in ((saved, tmp_path / "model"), (saved / "checkpoints", saved)):
        assert "same" in run_well([tieshard, "diff", one, other]).stdout
        run_well([tieshard, "check", one, "--same-as", other])
    done = run([tieshard, "diff", saved / "checkpoints" / "step-000000002", saved / "checkpoints" / "step-000000001", "--json"])
    assert done.returncode == 1 and json.loads(done.stdout)["differences"]
    loads = [json.loads(run_well([tieshard, "load", source, "--ranks", 2, "--values", 3, "--json"]).stdout) for source in (saved, tmp_path / "model")]
    values = [[entry["values"] for rank in load["per_rank"] for entry in rank["ledger"]] for load in loads]
    assert values[0] == values[1] and any(values[0])


def damaged(saved, tmp_path, damage):
    step = tmp_path / "step-000000002"
    shutil.copytree(saved / "checkpoints" / "step-000000002", step)
    weights = sorted(step.glob("*.safetensors"))[0]
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-4])
    elif damage == "gone":
        weights.unlink()
    elif damage == "bit":
        text = bytearray(weights.read_bytes())
        text[-1] ^= 1
        weights.write_bytes(text)
    return step


@pytest.mark.parametrize(("damage", "flags", "status", "code"), [
    ("cut", [], 2, "checkpoint-incomplete"), ("gone", [], 2, "checkpoint-incomplete"),
    ("bit", [], 0, None), ("bit", ["--deep"], 2, "checkpoint-incomplete")])
def test_damage_is_found_as_far_as_it_is_looked_for(tieshard, saved, tmp_path, damage, flags, status, code):
    done = run([tieshard, "doctor", damaged(saved, tmp_path, damage), "--json", *flags])
    assert done.returncode == status, done.stdout
    assert [finding["code"] for finding in json.loads(done.stdout)["findings"]] == ([code] if code else [])


def test_a_run_whose_newest_is_damaged_has_the_one_before_and_a_warning(tieshard, saved, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(saved, copy)
    sorted((copy / "checkpoints" / "step-000000002").glob("*.safetensors"))[0].unlink()
    done = run([tieshard, "doctor", copy, "--fail-on", "warning"])
    assert done.returncode == 2 and "[checkpoint-incomplete]" in done.stdout and "warning" in done.stdout
    assert "of step 1;" in run_well([tieshard, "inspect", copy]).stdout


def test_one_tensor_of_it_is_shown_and_the_ladder_is_climbed(tieshard, saved):
    shown = json.loads(run_well([tieshard, "inspect", saved, "--tensor", "model.norm.weight", "--json"]).stdout)
    assert "model.norm.weight" in json.dumps(shown)
    assert run([tieshard, "doctor", saved, "--try"], env=clean_environment()).returncode == 0


def test_an_older_one_in_place_of_a_damaged_one_is_said(tieshard, saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    shard = next((tmp_path / "run" / "checkpoints" / "step-000000002").glob("shard-00001*"))
    shard.write_bytes(shard.read_bytes()[:-10])
    for words in (["plan", "--ranks", 2], ["check", "--expect", "tied"], ["load", "--ranks", 2], ["diff", saved / "checkpoints" / "step-000000001"]):
        done = run([tieshard, words[0], tmp_path / "run", *words[1:]])
        assert done.returncode == 0 and "step-000000002" in done.stderr and "step 1 is taken" in done.stderr, (words, done.stderr)
