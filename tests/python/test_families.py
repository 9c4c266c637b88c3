"""The table that core makes of a config.json alone is the module that transformers builds: names, shapes, order, ties."""

import json

import pytest
import torch
import transformers
from running import run_well
from safetensors import safe_open
from safetensors.torch import save_file

TINY = {"vocab_size": 23, "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GQA = {"num_key_value_heads": 2, "head_dim": 6}
T5 = {"vocab_size": 23, "d_model": 8, "d_kv": 3, "d_ff": 12, "num_layers": 2, "num_heads": 2,
      "relative_attention_num_buckets": 4, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
GPT2 = {"vocab_size": 23, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2} | ENDS
ALBERT = TINY | ENDS | {"embedding_size": 4, "max_position_embeddings": 16}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 1}
QWEN_MOE = TINY | ENDS | GQA | {"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 6}
QWEN2_MOE = QWEN_MOE | {"shared_expert_intermediate_size": 10}
STACKED = ("qwen2_moe", "qwen3_moe", "mixtral")  # in memory
CASES = {
    "llama": ("LlamaForCausalLM", TINY | ENDS | {"tie_word_embeddings": True, "attention_bias": True}),
    "llama_untied": ("LlamaForCausalLM", TINY | ENDS | GQA | {"mlp_bias": True}),
    "mistral": ("MistralForCausalLM", TINY | ENDS | GQA),
    "mistral_tied": ("MistralForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": True, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", TINY | ENDS | {"num_key_value_heads": 2}),
    "qwen2_tied": ("Qwen2ForCausalLM", TINY | ENDS | {"num_key_value_heads": 2, "tie_word_embeddings": True,
                                                       "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", QWEN2_MOE | {"use_sliding_window": True, "sliding_window": 5}),
    "qwen2_moe_tied": ("Qwen2MoeForCausalLM", QWEN2_MOE | {"tie_word_embeddings": True, "mlp_only_layers": [1],
                                                           "qkv_bias": False}),
    "qwen3": ("Qwen3ForCausalLM", TINY | ENDS | GQA),
    "qwen3_tied": ("Qwen3ForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN_MOE),
    "qwen3_moe_tied": ("Qwen3MoeForCausalLM", QWEN_MOE | {"tie_word_embeddings": True, "mlp_only_layers": [0]}),
    "mixtral": ("MixtralForCausalLM", TINY | ENDS | GQA | EXPERTS),
    "mixtral_tied": ("MixtralForCausalLM", TINY | ENDS | GQA | EXPERTS | {"tie_word_embeddings": True}),
    "phi3": ("Phi3ForCausalLM", TINY | ENDS),
    "phi3_tied": ("Phi3ForCausalLM", TINY | ENDS | {"num_key_value_heads": 2, "tie_word_embeddings": True,
                                                    "hidden_size": 32, "partial_rotary_factor": 0.75}),
    "gemma": ("GemmaForCausalLM", TINY | ENDS | GQA),
    "gemma_untied": ("GemmaForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma2": ("Gemma2ForCausalLM", TINY | ENDS | GQA),
    "gemma2_untied": ("Gemma2ForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma3": ("Gemma3ForCausalLM", TINY | ENDS | GQA),
    "gemma3_untied": ("Gemma3ForCausalLM", TINY | ENDS | GQA | {"tie_word_embeddings": False, "attention_bias": True}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5_gated": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 1}),
    "albert": ("AlbertForMaskedLM", ALBERT),
    "albert_groups": ("AlbertForMaskedLM", ALBERT | {"num_hidden_groups": 2, "inner_group_num": 3}),
    "albert_untied": ("AlbertForMaskedLM", ALBERT | {"tie_word_embeddings": False}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2_cross": ("GPT2LMHeadModel", GPT2 | {"add_cross_attention": True, "n_inner": 20}),
    "gpt2_untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt_oss": ("GptOssForCausalLM", TINY | ENDS | GQA | EXPERTS),
    "gpt_oss_tied": ("GptOssForCausalLM", TINY | ENDS | GQA | EXPERTS | {"tie_word_embeddings": True}),
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


def stored_rows(folder):
    """Names and shapes of a file, which is in no order of modules."""
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        return sorted((name, tensors.get_slice(name).get_shape()) for name in tensors.keys())


def test_the_parameters_are_those_of_the_module(tieshard, saved):
    model, folder = saved
    plan = json.loads(run_well([tieshard, "plan", folder, "--ranks", 1, "--all", "--json"]).stdout)
    got = [(row["name"], row["shape"]) for row in plan["parameters"]]
    if model.config.model_type in STACKED:  # the experts, which their files hold one by one
        assert sorted(got) == stored_rows(folder)
    else:
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


DECODERS = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM",
            "Gemma3ForCausalLM", "GptOssForCausalLM"]
SIZES = {"vocab_size": 40000, "hidden_size": 64, "intermediate_size": 12, "num_hidden_layers": 32,
         "num_attention_heads": 32}
# As version 4 wrote them, and the releases of these families still have them.
VERSION_4 = {
    "llama": SIZES | {"rope_theta": 500000.0, "torch_dtype": "bfloat16", "num_key_value_heads": 8, "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}},
    "mistral": SIZES | {"rope_theta": 1000000.0, "sliding_window": None, "num_key_value_heads": 8},
    "qwen2": SIZES | {"rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False},
    "qwen2_moe": SIZES | {"rope_theta": 1000000.0, "num_experts": 16, "num_experts_per_tok": 2, "max_window_layers": 21,
                          "moe_intermediate_size": 24, "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2,
                          "norm_topk_prob": True, "sliding_window": 32768, "use_sliding_window": False},
    "qwen2_moe_window": SIZES | {"model_type": "qwen2_moe", "use_sliding_window": True, "sliding_window": 512,
                                 "max_window_layers": 21},
    "qwen3": SIZES | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    "qwen3_moe": SIZES | {"num_experts": 16, "num_experts_per_tok": 4, "mlp_only_layers": [3], "decoder_sparse_step": 2,
                          "norm_topk_prob": True, "max_window_layers": 48, "rope_theta": 10000000},
    "mixtral": SIZES | {"sliding_window": None, "rope_theta": 1000000.0, "num_local_experts": 16},
    "phi3": SIZES | {"partial_rotary_factor": 1.0, "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047,
                     "original_max_position_embeddings": 4096},
    "phi3_partial": SIZES | {"model_type": "phi3", "hidden_size": 512, "partial_rotary_factor": 0.75},
    "gemma": SIZES | {"hidden_act": "gelu", "rope_theta": 10000.0, "num_key_value_heads": 1},
    "gemma2": SIZES | {"hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 144, "sliding_window_size": 4096},
    "gemma3_text": SIZES | {"rope_local_base_freq": 20000.0, "rope_theta": 500000.0, "sliding_window": 512,
                            "sliding_window_pattern": 4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    "gpt_oss": SIZES | {"rope_theta": 150000, "num_local_experts": 32, "experts_per_token": 4, "sliding_window": 128,
                        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": False,
                                         "original_max_position_embeddings": 4096, "rope_type": "yarn"}},
}


def inspected(tieshard, folder):
    """What a folder's config.json is read as; a file of weights is made, so that there is a checkpoint."""
    if not (folder / "model.safetensors").exists():
        save_file({"model.norm.weight": torch.zeros(64)}, folder / "model.safetensors")
    return json.loads(run_well([tieshard, "inspect", folder, "--json"]).stdout)


def facts_of(tieshard, folder):
    document = inspected(tieshard, folder)
    return document["family"], document["decoder"], bool(document["groups"])


def written(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("architecture", DECODERS)
def test_what_config_json_leaves_out_is_what_the_class_has(tieshard, tmp_path, architecture):
    config_class = getattr(transformers, architecture).config_class
    few = written(tmp_path / "few", SIZES | {"model_type": config_class.model_type, "architectures": [architecture]})
    config_class(**SIZES, architectures=[architecture]).save_pretrained(tmp_path / "all")
    family, decoder, tied = facts_of(tieshard, few)
    assert decoder is not None and family == config_class.model_type
    assert facts_of(tieshard, tmp_path / "all") == (family, decoder, tied)
    assert tied == config_class().tie_word_embeddings


@pytest.mark.parametrize("model_type", VERSION_4)
def test_a_config_of_version_4_is_read_as_transformers_reads_it(tieshard, tmp_path, model_type):
    old = written(tmp_path / "old", {"model_type": model_type} | VERSION_4[model_type])
    transformers.AutoConfig.from_pretrained(old).save_pretrained(tmp_path / "new")
    assert "rope_parameters" in (tmp_path / "new" / "config.json").read_text()
    read = facts_of(tieshard, old)
    assert read[1] is not None and read == facts_of(tieshard, tmp_path / "new")


def test_the_layers_are_those_of_the_modules(tieshard, saved):
    model, folder = saved
    decoder = inspected(tieshard, folder)["decoder"]
    if decoder is None:
        assert type(model).__name__ not in DECODERS
        return
    config, ropes = model.config, model.config.rope_parameters
    embedding = model.get_input_embeddings()
    assert decoder["pad_token_id"] == embedding.padding_idx
    assert decoder["embedding_scale"] == pytest.approx(float(getattr(embedding, "embed_scale", 1.0)), rel=1e-6)
    assert len(decoder["layers"]) == len(model.model.layers)
    for got, layer in zip(decoder["layers"], model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for_all = None if getattr(config, "layer_types", None) else getattr(config, "sliding_window", None)
        assert got["window"] == (getattr(attention, "sliding_window", for_all) or 0)
        assert decoder["attention_scale"] == pytest.approx(attention.scaling)
        assert decoder["head_dim"] == attention.head_dim
        rope = ropes.get(attention.layer_type, ropes) if "full_attention" in ropes else ropes
        assert decoder["ropes"][got["rope"]]["theta"] == rope["rope_theta"]
        assert decoder["ropes"][got["rope"]]["type"] == rope["rope_type"]
        assert got["experts"] == hasattr(mlp, "experts")
        if got["experts"]:
            router = mlp.router if hasattr(mlp, "router") else mlp.gate
            assert (decoder["experts"]["count"], decoder["experts"]["chosen"]) == (router.num_experts, router.top_k)
