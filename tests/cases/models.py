"""Small models of the families that the cases need: (config, tensors)."""

import numpy as np
from stored import Stored, floats_as, numbered, patterned

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def tensors_of(shapes, dtype="F32"):
    return {name: numbered(name, shape, dtype) for name, shape in shapes.items()}


def llama(tied=True, head=None, vocab=24, hidden=8, intermediate=20, layers=2, heads=4, kv=2, dtype="F32", head_dim=2):
    """`tied` None leaves the flag out; the head is stored as `head` says, by default when the model is untied."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden,
              "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": head_dim, "max_position_embeddings": 32, "hidden_act": "silu",
              "rms_norm_eps": 1e-6, "dtype": DTYPE_NAMES[dtype]}
    if tied is not None:
        config["tie_word_embeddings"] = tied
    shapes = {EMBED: (vocab, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + "self_attn.q_proj.weight": (heads * head_dim, hidden),
                   at + "self_attn.k_proj.weight": (kv * head_dim, hidden),
                   at + "self_attn.v_proj.weight": (kv * head_dim, hidden),
                   at + "self_attn.o_proj.weight": (hidden, heads * head_dim),
                   at + "mlp.gate_proj.weight": (intermediate, hidden), at + "mlp.up_proj.weight": (intermediate, hidden),
                   at + "mlp.down_proj.weight": (hidden, intermediate), at + "input_layernorm.weight": (hidden,),
                   at + "post_attention_layernorm.weight": (hidden,)}
    shapes[NORM] = (hidden,)
    if head or (head is None and not tied):
        shapes[HEAD] = (vocab, hidden)
    return config, tensors_of(shapes, dtype)


def gemma(**options):
    config, tensors = llama(**options)
    return config | {"model_type": "gemma", "architectures": ["GemmaForCausalLM"],
                     "hidden_act": "gelu_pytorch_tanh"}, tensors


def gpt2(vocab=24, width=8, layers=1):
    """Its linear layers are stored as [in, out]."""
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab, "n_embd": width,
              "n_layer": layers, "n_head": 2, "n_positions": 16, "dtype": "float32"}
    shapes = {"transformer.wte.weight": (vocab, width), "transformer.wpe.weight": (16, width)}
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        shapes |= {at + "ln_1.weight": (width,), at + "ln_1.bias": (width,), at + "attn.c_attn.weight": (width, 3 * width),
                   at + "attn.c_attn.bias": (3 * width,), at + "attn.c_proj.weight": (width, width),
                   at + "attn.c_proj.bias": (width,), at + "ln_2.weight": (width,), at + "ln_2.bias": (width,),
                   at + "mlp.c_fc.weight": (width, 4 * width), at + "mlp.c_fc.bias": (4 * width,),
                   at + "mlp.c_proj.weight": (4 * width, width), at + "mlp.c_proj.bias": (width,)}
    shapes |= {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}
    return config, tensors_of(shapes)


T5_NAMES = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD]


def t5(stored, equal=True, tied=True):
    """`stored` are those of T5_NAMES that the file holds; `equal` gives all of them one set of values."""
    config = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True,
              "vocab_size": 24, "d_model": 8, "d_kv": 4, "d_ff": 20, "num_heads": 2, "num_layers": 1,
              "num_decoder_layers": 1, "relative_attention_num_buckets": 4, "feed_forward_proj": "relu",
              "tie_word_embeddings": tied, "decoder_start_token_id": 0, "dtype": "float32"}
    tensors = {name: numbered("shared.weight" if equal else name, (24, 8)) for name in stored}
    shapes = {}
    for side, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        block = side + ".block.0.layer."
        for number, attention in enumerate(attentions):
            shapes |= {f"{block}{number}.{attention}.{part}.weight": (8, 8) for part in "qkvo"}
        last = len(attentions)
        shapes |= {f"{block}{last}.DenseReluDense.wi.weight": (20, 8), f"{block}{last}.DenseReluDense.wo.weight": (8, 20)}
        shapes |= {f"{block}{number}.layer_norm.weight": (8,) for number in range(last + 1)}
        shapes |= {block + "0.SelfAttention.relative_attention_bias.weight": (4, 2),
                   side + ".final_layer_norm.weight": (8,)}
    return config, tensors | tensors_of(shapes)


def albert(layers=3):
    """Every layer is the one that is stored; the head's decoder is the embedding, its bias the head's own."""
    config = {"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "vocab_size": 24, "embedding_size": 4,
              "hidden_size": 8, "num_hidden_layers": layers, "num_hidden_groups": 1, "inner_group_num": 1,
              "num_attention_heads": 2, "intermediate_size": 20, "max_position_embeddings": 16, "type_vocab_size": 2,
              "dtype": "float32"}
    at = "albert.embeddings."
    shapes = {at + "word_embeddings.weight": (24, 4), at + "position_embeddings.weight": (16, 4),
              at + "token_type_embeddings.weight": (2, 4), at + "LayerNorm.weight": (4,), at + "LayerNorm.bias": (4,)}
    at = "albert.encoder."
    shapes |= {at + "embedding_hidden_mapping_in.weight": (8, 4), at + "embedding_hidden_mapping_in.bias": (8,)}
    at += "albert_layer_groups.0.albert_layers.0."
    for part in ("query", "key", "value", "dense"):
        shapes |= {f"{at}attention.{part}.weight": (8, 8), f"{at}attention.{part}.bias": (8,)}
    for norm in ("attention.LayerNorm", "full_layer_layer_norm"):
        shapes |= {f"{at}{norm}.weight": (8,), f"{at}{norm}.bias": (8,)}
    shapes |= {at + "ffn.weight": (20, 8), at + "ffn.bias": (20,), at + "ffn_output.weight": (8, 20),
               at + "ffn_output.bias": (8,), "predictions.bias": (24,), "predictions.dense.weight": (4, 8),
               "predictions.dense.bias": (4,), "predictions.LayerNorm.weight": (4,), "predictions.LayerNorm.bias": (4,)}
    return config, tensors_of(shapes)


EXPERTS = "model.layers.0.mlp.experts."


def gpt_oss(quantised=True):
    """One layer, two experts; their weights as MXFP4 blocks of 32 values, or plain."""
    config = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 24, "hidden_size": 64,
              "intermediate_size": 32, "num_hidden_layers": 1, "num_local_experts": 2, "num_experts_per_tok": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
              "layer_types": ["full_attention"], "attention_bias": True, "tie_word_embeddings": False,
              "dtype": "bfloat16"}
    at = "model.layers.0."
    shapes = {EMBED: (24, 64), at + "input_layernorm.weight": (64,), at + "post_attention_layernorm.weight": (64,),
              at + "self_attn.sinks": (2,), at + "mlp.router.weight": (2, 64), at + "mlp.router.bias": (2,),
              EXPERTS + "gate_up_proj_bias": (2, 64), EXPERTS + "down_proj_bias": (2, 64), NORM: (64,), HEAD: (24, 64)}
    for part, rows in (("q", 16), ("k", 8), ("v", 8)):
        shapes |= {f"{at}self_attn.{part}_proj.weight": (rows, 64), f"{at}self_attn.{part}_proj.bias": (rows,)}
    shapes |= {at + "self_attn.o_proj.weight": (64, 16), at + "self_attn.o_proj.bias": (64,)}
    tensors = tensors_of(shapes, "BF16")
    if not quantised:
        return config, tensors | tensors_of({EXPERTS + "gate_up_proj": (2, 64, 64), EXPERTS + "down_proj": (2, 32, 64)},
                                            "BF16")
    config["quantization_config"] = {"quant_method": "mxfp4"}
    for name, out, blocks in (("gate_up_proj", 64, 2), ("down_proj", 64, 1)):
        tensors[EXPERTS + name + "_blocks"] = any_byte(name, (2, out, blocks, 16))
        scales = [124 + (seed + 3 * len(name)) % 7 for seed in range(2 * out * blocks)]
        tensors[EXPERTS + name + "_scales"] = Stored("U8", (2, out, blocks), bytes(scales))
    return config, tensors


def any_byte(name, shape):
    return Stored("U8", shape, bytes((37 * i + len(name)) % 256 for i in range(int(np.prod(shape)))))


FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4_values(blocks, scales):
    """What [experts, out, in / 32, 16] blocks mean: [experts, in, out], flat. The low half of a byte comes first."""
    codes = np.frombuffer(blocks.data, np.uint8).reshape(blocks.shape)
    pairs = np.stack([FP4_VALUES[codes & 15], FP4_VALUES[codes >> 4]], axis=-1)
    values = pairs.reshape(*blocks.shape[:3], 32)
    exponents = np.frombuffer(scales.data, np.uint8).reshape(scales.shape).astype(int) - 127
    whole = (values * np.exp2(exponents)[..., None]).reshape(blocks.shape[0], blocks.shape[1], -1)
    return whole.transpose(0, 2, 1).reshape(-1)


def fp8_value(code):
    """Of an E4M3 code without a sign: 4 bits of exponent (bias 7), 3 of mantissa."""
    exponent, mantissa = code >> 3, code & 7
    return mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def fp8_llama(scale_shape, scale_name="weight_scale_inv", quantization=None, **options):
    """Projections in E4M3 with F32 scales of shape `scale_shape(rows, columns)`, a power of two each."""
    config, tensors = llama(**options)
    config["quantization_config"] = quantization or {"quant_method": "fp8"}
    for name in [name for name in tensors if "_proj." in name]:
        rows, columns = tensors[name].shape
        shape = scale_shape(rows, columns)
        count = int(np.prod(shape, dtype=np.int64))
        tensors[name] = patterned(name, (rows, columns), "F8_E4M3")
        tensors[name.removesuffix("weight") + scale_name] = floats_as([2.0 ** (i % 3 - 3) for i in range(count)], shape)
    return config, tensors


def fp8_values(weight, scales, block):
    """Flat values of a matrix whose scales hold for blocks of `block` rows and columns."""
    codes = np.frombuffer(weight.data, np.uint8).reshape(weight.shape)
    values = np.array([fp8_value(code) for code in range(128)])[codes]
    grid = scales.floats().reshape(scales.shape if len(scales.shape) == 2 else (1, 1))
    rows = np.minimum(np.arange(weight.shape[0]) // block[0], grid.shape[0] - 1)
    columns = np.minimum(np.arange(weight.shape[1]) // block[1], grid.shape[1] - 1)
    return (values * grid[np.ix_(rows, columns)]).reshape(-1)
