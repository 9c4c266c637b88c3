"""`tieshard demo`: the walk succeeds, says where everything is, and its export is a checkpoint that others can load."""

import random

import pytest
import torch
from running import ROOT, read_metrics, run, run_well
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="module")
def walk(tieshard, tmp_path_factory):
    """(folder, what the demo printed) of a whole demo on the project's own documents."""
    folder = tmp_path_factory.mktemp("demo") / "walk"
    documents = sorted((ROOT / "docs").glob("*.md"))
    return folder, run_well([tieshard, "demo", "--out", folder, "--text", *documents]).stdout


def one(folder, pattern):
    (found,) = folder.rglob(pattern)
    return found


def test_the_demo_names_its_folder_and_the_tie(walk):
    folder, printed = walk
    assert str(folder) in printed
    assert "model.embed_tokens.weight" in printed and "lm_head.weight" in printed


def test_the_demo_learns(walk):
    folder, _ = walk
    losses = [line["loss"] for line in read_metrics(one(folder, "metrics.jsonl").parent)]
    assert sum(losses[-10:]) <= 0.8 * sum(losses[:10])


def test_transformers_loads_the_export_of_the_demo(walk):
    folder, _ = walk
    export = one(folder, "export")
    model, info = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), (problem, info[problem])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "lm_head.weight" not in load_file(one(export, "*.safetensors"))


def test_noise_that_nobody_can_learn_ends_with_status_1(tieshard, tmp_path):
    noise = tmp_path / "noise.txt"
    noise.write_bytes(random.Random(3).randbytes(20000))
    done = run([tieshard, "demo", "--out", tmp_path / "walk", "--text", noise, "--steps", 20])
    assert done.returncode == 1, done.stderr
    assert "demo-failed" in done.stderr and "0.8" in done.stderr
