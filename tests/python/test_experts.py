"""Experts in the plan and on the ranks; a checkpoint of the size of GPT-OSS-20b, whose files are holes."""

import json

import gpt_oss_20b
import pytest
import torch
import transformers
from running import run_well
from safetensors import safe_open

EXPERTS = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
BF16 = 2


def planned(tieshard, folder, ranks, *flags):
    return json.loads(run_well([tieshard, "plan", folder, "--ranks", ranks, "--json", *flags]).stdout)


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A GPT-OSS of five experts, which eight ranks cannot all have one of."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(vocab_size=24, num_hidden_layers=2, hidden_size=16, intermediate_size=12,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_local_experts=5,
                                       num_experts_per_tok=2, pad_token_id=0)
    folder = tmp_path_factory.mktemp("five") / "model"
    transformers.GptOssForCausalLM(config).save_pretrained(folder)
    return folder


def test_ranks_without_a_part_of_the_experts_are_planned_and_loaded(tieshard, five, tmp_path):
    plan = planned(tieshard, five, 8, "--shard-dim", "first")
    experts = [f"model.layers.{layer}.mlp.experts.{name}" for layer in (0, 1) for name in EXPERTS]
    assert set(experts) <= set(plan["empty"])
    one = 2 * 4 * (16 * 24 + 24 + 12 * 16 + 16)  # of both layers, in float32
    assert [rank["expert_bytes"] for rank in plan["per_rank"]] == [one] * 5 + [0] * 3
    assert plan["expert_bytes"] == 5 * one
    run_well([tieshard, "load", five, "--ranks", 8, "--shard-dim", "first", "--out", tmp_path / "out"])
    with safe_open(five / "model.safetensors", "pt") as stored:
        for name in experts:
            parts = []
            for rank in range(8):
                with safe_open(tmp_path / "out" / f"rank-{rank:05d}-of-00008.safetensors", "pt") as shards:
                    parts.append(shards.get_tensor(name))
            assert [len(part) for part in parts] == [1] * 5 + [0] * 3
            assert torch.equal(torch.cat(parts), stored.get_tensor(name))


def test_experts_lie_in_the_units_of_their_layers(tieshard, five):
    plan = planned(tieshard, five, 2)
    root, *layers = plan["units"]
    assert root["expert_bytes"] == 0
    assert [unit["expert_bytes"] for unit in layers] == [plan["expert_bytes"] // 2] * 2
    assert all(0 < unit["expert_bytes"] < unit["gathered_bytes"] for unit in layers)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt_oss_20b") / "model"
    assert gpt_oss_20b.write_checkpoint(folder) == gpt_oss_20b.BYTES
    return folder


def test_gpt_oss_20b_is_inspected(tieshard, large):
    document = json.loads(run_well([tieshard, "inspect", large, "--json"]).stdout)
    assert document["family"] == "gpt_oss" and document["findings"] == []
    assert document["stored_bytes"] == gpt_oss_20b.BYTES and len(document["tensors"]) == 459
    assert document["parameters"] == 20_914_757_184
    assert json.loads(run_well([tieshard, "ties", large, "--json"]).stdout)["groups"] == []


@pytest.mark.parametrize("ranks", [8, 1024])
def test_gpt_oss_20b_is_planned_with_the_memory_that_it_takes(tieshard, large, ranks):
    plan = planned(tieshard, large, ranks, "--param-dtype", "bfloat16")
    assert [finding for finding in plan["findings"] if finding["level"] != "note"] == []
    layer = BF16 * gpt_oss_20b.EXPERTS * (3 * 2880 * 2880 + 3 * 2880)
    assert plan["expert_bytes"] == 24 * layer
    root, *layers = plan["units"]
    assert root["expert_bytes"] == 0 and [unit["expert_bytes"] for unit in layers] == 24 * [layer]
    # A rank never holds the experts of more than one layer whole.
    assert plan["step"]["in_flight_bytes"] == root["gathered_bytes"] + layers[0]["gathered_bytes"]
    assert sum(rank["expert_bytes"] for rank in plan["per_rank"]) == plan["expert_bytes"]
    assert sum(rank["parameter_bytes"] for rank in plan["per_rank"]) == BF16 * plan["elements"]
    largest = max(rank["total_bytes"] for rank in plan["per_rank"])
    training = plan["training"]
    assert training["peak_bytes"] is None and "no formula" in training["why"]
    assert training["peak_without_activations_bytes"] > largest


def test_two_layers_of_gpt_oss_20b_load_within_what_was_predicted(tieshard, tmp_path):
    """With the vocabulary of a small model: the layers are what is large here, and two ranks' shares of them fit."""
    gpt_oss_20b.write_checkpoint(tmp_path / "model", layers=2, vocab=4096)
    done = run_well([tieshard, "load", tmp_path / "model", "--ranks", 2, "--param-dtype", "bfloat16", "--json"])
    for rank in json.loads(done.stdout)["per_rank"]:
        assert rank["shard_bytes"] > 1.5e9
        assert rank["peak_bytes"] <= rank["predicted_bytes"] <= 1.05 * rank["shard_bytes"] + (128 << 20)
