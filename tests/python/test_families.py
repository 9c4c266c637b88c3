"""The table that core makes of a config.json alone is the module that transformers builds: names, shapes, order, ties."""

import json

import pytest
import torch
import transformers
from running import run_well

TINY = {"vocab_size": 23, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GQA = {"num_key_value_heads": 2, "head_dim": 6}
T5 = {"vocab_size": 23, "d_model": 8, "d_kv": 3, "d_ff": 12, "num_layers": 2, "num_heads": 2,
      "relative_attention_num_buckets": 4, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
GPT2 = {"vocab_size": 23, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2} | ENDS
ALBERT = TINY | ENDS | {"embedding_size": 4, "max_position_embeddings": 16}
CASES = {
    "llama": ("LlamaForCausalLM", TINY | ENDS | {"tie_word_embeddings": True, "attention_bias": True}),
    "gemma": ("GemmaForCausalLM", TINY | ENDS | GQA),
    "gemma_untied": ("GemmaForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": False, "attention_bias": True}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5_gated": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 1}),
    "albert": ("AlbertForMaskedLM", ALBERT),
    "albert_groups": ("AlbertForMaskedLM", ALBERT | {"num_hidden_groups": 2, "inner_group_num": 3}),
    "albert_untied": ("AlbertForMaskedLM", ALBERT | {"tie_word_embeddings": False}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2_cross": ("GPT2LMHeadModel", GPT2 | {"add_cross_attention": True, "n_inner": 20}),
    "gpt2_untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt_oss": ("GptOssForCausalLM", TINY | ENDS | GQA | {"num_local_experts": 3, "num_experts_per_tok": 1}),
    "gpt_oss_tied": ("GptOssForCausalLM",
                     TINY | ENDS | GQA | {"num_local_experts": 3, "num_experts_per_tok": 1, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=CASES)
def saved(request, tmp_path_factory):
    """A module and the directory that save_pretrained made of it."""
    architecture, sizes = CASES[request.param]
    model_class = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**sizes))
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, folder


def test_the_parameters_are_those_of_the_module(tieshard, saved):
    model, folder = saved
    plan = json.loads(run_well([tieshard, "plan", folder, "--ranks", 1, "--all", "--json"]).stdout)
    got = [(row["name"], row["shape"]) for row in plan["parameters"]]
    assert got == [(name, list(parameter.shape)) for name, parameter in model.named_parameters()]
    assert [finding for finding in plan["findings"] if finding["level"] != "note"] == []


def test_the_ties_are_those_of_the_module(tieshard, saved):
    model, folder = saved
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    expected = [{"canonical": first, "aliases": aliases} for first, *aliases in names.values() if aliases]
    groups = json.loads(run_well([tieshard, "ties", folder, "--json"]).stdout)["groups"]
    got = [{"canonical": g["canonical"], "aliases": [alias["name"] for alias in g["aliases"]]} for g in groups]
    assert got == expected


def test_every_parameter_but_those_at_the_ends_lies_in_a_unit(tieshard, saved):
    model, folder = saved
    plan = json.loads(run_well([tieshard, "plan", folder, "--ranks", 1, "--all", "--json"]).stdout)
    root, *units = plan["units"]
    modules = dict(model.named_modules())
    assert units and all(unit["name"] in modules and unit["parameters"] for unit in units)
    assert not [name for name in root["parameters"] if any(part.isdigit() for part in name.split("."))]
