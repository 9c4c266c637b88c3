"""Tiny models of several architectures, as transformers saves them."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=67, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)

CONFIGS = {
    "llama_tied": ("llama", dict(SMALL, tie_word_embeddings=True)),
    "llama_untied": ("llama", dict(SMALL, tie_word_embeddings=False)),
    "qwen3_tied": ("qwen3", dict(SMALL, tie_word_embeddings=True, head_dim=8)),
    "gpt2": ("gpt2", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=67, bos_token_id=1, eos_token_id=2)),
    "gpt_oss_tied": ("gpt_oss", dict(SMALL, tie_word_embeddings=True, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                     layer_types=["sliding_attention", "full_attention"])),
    "t5": ("t5", dict(d_model=32, d_ff=48, d_kv=8, num_layers=2, num_decoder_layers=2, num_heads=4, vocab_size=67,
                      pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)),
    # each expert is stored by itself, and all of a layer are one parameter of the model
    "mixtral": ("mixtral", dict(SMALL, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("qwen3_moe", dict(SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)),
    # of no family that tieshard knows: names come from the model
    "opt": ("opt", dict(hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=67,
                        max_position_embeddings=64, word_embed_proj_dim=32)),
    "bloom": ("bloom", dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=67)),
}


def class_of(name):
    return AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM


def config_of(name):
    kind, options = CONFIGS[name]
    return AutoConfig.for_model(kind, **options)


def on_meta(directory, name, dtype=torch.float32):
    """The model of a saved config, without memory for its parameters."""
    config = AutoConfig.from_pretrained(directory)
    with torch.device("meta"):
        return class_of(name).from_config(config).to(dtype)


def save_all(folder, dtype=torch.float32):
    for name in CONFIGS:
        torch.manual_seed(7)
        model = class_of(name).from_config(config_of(name)).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder / name)
