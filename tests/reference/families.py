"""The tiny checkpoints of make_reference.py: one or two of each model family, as data.

A case: `class` is a configuration class of transformers, `config` its arguments; `like` names the case whose weights and
batch are taken; `dtype` is that of the stored weights, `shard` save_pretrained's max_shard_size, `salt` another draw of
the weights (a router must not be near a tie). `v4_config` writes config.json in the style of transformers 4, `mxfp4`
stores the experts as openai/gpt-oss-20b does.
"""

WINDOW = 8  # tokens that a sliding layer sees: less than a sequence
LLAMA = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
SMALL = {"vocab_size": 97, "hidden_size": 40, "intermediate_size": 66, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}
GEMMA = SMALL | {"head_dim": 12, "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
GPT_OSS = SMALL | {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 6, "head_dim": 16, "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": WINDOW, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "pad_token_id": 5,
    "eos_token_id": 2, "tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 128}}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


CASES = {
    "llama_tied": {"class": "LlamaConfig", "config": LLAMA},
    "llama_tied_bf16": {"class": "LlamaConfig", "config": LLAMA, "like": "llama_tied", "dtype": "bfloat16"},
    "llama_tied_f16": {"class": "LlamaConfig", "config": LLAMA, "like": "llama_tied", "dtype": "float16"},
    "llama_tied_v4config": {"class": "LlamaConfig", "config": LLAMA, "like": "llama_tied", "v4_config": True},
    "llama_untied": {
        "class": "LlamaConfig", "shard": "60KB",
        "config": LLAMA | {"tie_word_embeddings": False, "vocab_size": 103, "num_hidden_layers": 2,
                           "num_attention_heads": 4, "head_dim": 14, "pad_token_id": 3}},
    "llama3_rope": {
        "class": "LlamaConfig",
        "config": without(LLAMA, "rope_theta") | {
            "hidden_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
            "head_dim": 16, "max_position_embeddings": 512, "rope_parameters": LLAMA3_ROPE}},
    "mistral": {
        "class": "MistralConfig", "shard": "60KB",
        "config": SMALL | {"head_dim": 14, "rope_theta": 1000000.0, "sliding_window": WINDOW,
                           "tie_word_embeddings": False}},
    "qwen2_tied": {"class": "Qwen2Config",
                   "config": SMALL | ENDS | {"rope_theta": 1000000.0, "tie_word_embeddings": True}},
    "qwen2_window": {
        "class": "Qwen2Config",
        "config": SMALL | ENDS | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": WINDOW,
                                  "max_window_layers": 1, "tie_word_embeddings": False}},
    "qwen2_moe": {
        "class": "Qwen2MoeConfig", "salt": 199, "shard": "60KB",
        "config": SMALL | ENDS | {"num_hidden_layers": 3, "moe_intermediate_size": 22, "head_dim": 12, "num_experts": 5,
                                  "shared_expert_intermediate_size": 34, "num_experts_per_tok": 2, "pad_token_id": 6,
                                  "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": WINDOW,
                                  "max_window_layers": 2, "tie_word_embeddings": False}},
    "qwen2_moe_tied": {
        "class": "Qwen2MoeConfig", "salt": 197,
        "config": SMALL | ENDS | {"moe_intermediate_size": 22, "num_experts": 4, "num_experts_per_tok": 3,
                                  "shared_expert_intermediate_size": 30, "norm_topk_prob": True, "qkv_bias": False,
                                  "decoder_sparse_step": 2, "rope_theta": 1000000.0, "tie_word_embeddings": True}},
    "qwen3_tied": {"class": "Qwen3Config",
                   "config": SMALL | ENDS | {"head_dim": 16, "rope_theta": 1000000.0, "tie_word_embeddings": True}},
    "qwen3_moe": {
        "class": "Qwen3MoeConfig", "salt": 8, "shard": "60KB",
        "config": SMALL | ENDS | {"num_hidden_layers": 3, "moe_intermediate_size": 22, "head_dim": 12,
                                  "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True,
                                  "mlp_only_layers": [0], "tie_word_embeddings": False}},
    "qwen3_moe_unnormalised": {
        "class": "Qwen3MoeConfig", "salt": 3,
        "config": SMALL | ENDS | {"moe_intermediate_size": 22, "head_dim": 12, "num_experts": 4,
                                  "num_experts_per_tok": 3, "norm_topk_prob": False, "decoder_sparse_step": 2,
                                  "tie_word_embeddings": True}},
    "mixtral": {
        "class": "MixtralConfig", "salt": 5,
        "config": SMALL | {"intermediate_size": 22, "num_local_experts": 5, "num_experts_per_tok": 2,
                           "rope_theta": 1000000.0, "tie_word_embeddings": False}},
    "phi3_tied": {
        "class": "Phi3Config",
        "config": SMALL | ENDS | {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 1,
                                  "original_max_position_embeddings": 64, "sliding_window": WINDOW, "pad_token_id": 4,
                                  "tie_word_embeddings": True, "rope_parameters": {
                                      "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}},
    "gemma_tied": {"class": "GemmaConfig", "config": GEMMA | {"num_key_value_heads": 1}},
    "gemma2": {
        "class": "Gemma2Config",
        "config": GEMMA | {"query_pre_attn_scalar": 18, "sliding_window": WINDOW, "attn_logit_softcapping": 5.0,
                           "final_logit_softcapping": 3.0}},
    "gemma3_text": {
        "class": "Gemma3TextConfig", "shard": "60KB",
        "config": GEMMA | {
            "num_hidden_layers": 3, "query_pre_attn_scalar": 20, "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}}},
    "gpt2_tied": {
        "class": "GPT2Config",
        "config": ENDS | {"vocab_size": 97, "n_embd": 42, "n_layer": 2, "n_head": 3, "n_inner": 90,
                          "n_positions": 32}},
    "t5_tied": {
        "class": "T5Config", "shard": "60KB",
        "config": {"vocab_size": 97, "d_model": 40, "d_kv": 12, "d_ff": 66, "num_layers": 2, "num_decoder_layers": 3,
                   "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
                   "feed_forward_proj": "relu", "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}},
    "t5_gated": {
        "class": "T5Config",
        "config": {"vocab_size": 97, "d_model": 40, "d_kv": 12, "d_ff": 66, "num_layers": 2, "num_heads": 3,
                   "relative_attention_num_buckets": 12, "relative_attention_max_distance": 20,
                   "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 3, "pad_token_id": 0,
                   "eos_token_id": 1}},
    "gpt_oss_untied": {"class": "GptOssConfig", "salt": 8, "config": GPT_OSS, "shard": "700KB"},
    "gpt_oss_tied": {"class": "GptOssConfig", "salt": 4, "config": GPT_OSS | {"tie_word_embeddings": True}},
    "gpt_oss_mxfp4": {"class": "GptOssConfig", "salt": 31, "config": GPT_OSS, "dtype": "bfloat16", "v4_config": True, "mxfp4": True},
}

# Standard deviations, times 1 / sqrt(inputs) but for embeddings: large enough that a wrong formula shows, small enough
# that float32 does not lose it.
EMBEDDINGS = ("shared.weight", "wte.weight", "wpe.weight", "embed_tokens.weight")
EMBEDDING_SCALES = {"t5": 1.0, "gemma": 0.15, "gemma2": 0.15, "gemma3_text": 0.15}  # else 0.3
GAINS = (  # the first pattern that matches
    (r"(SelfAttention|EncDecAttention)\.[qk]\.", 0.7),
    (r"router|mlp\.gate\.weight", 2.0),
    (r"experts\.gate_up_proj$", 1.6),
    (r"experts\.down_proj$", 0.5),
    (r"", 1.0))
