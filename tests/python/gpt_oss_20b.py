"""The checkpoint of openai/gpt-oss-20b without its data: its names, shapes, dtypes and three files, each a header and a
hole. The files take some kilobytes of disk.

    python tests/python/gpt_oss_20b.py DIR [--layers N]
"""

import argparse
import json
import pathlib
import struct

CONFIG = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                       "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                                            "original_max_position_embeddings": 4096, "rope_type": "yarn",
                                            "truncate": False},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088}
HIDDEN, EXPERTS, INTERMEDIATE, VOCAB = (CONFIG[key] for key in ("hidden_size", "num_local_experts", "intermediate_size",
                                                                "vocab_size"))
QUERY, KEY_VALUE = (CONFIG["head_dim"] * CONFIG[key] for key in ("num_attention_heads", "num_key_value_heads"))
FILES = 3
BYTES = 13_761_264_768  # of all tensors of the release, as its index says
BLOCK, DTYPE_BYTES = 32, {"BF16": 2, "U8": 1}


def layer_tensors(layer):
    """(name, dtype, shape) of each tensor of a layer."""
    tensors = [(f"{norm}.weight", "BF16", [HIDDEN]) for norm in ("input_layernorm", "post_attention_layernorm")]
    for name, rows, columns in (("self_attn.q_proj", QUERY, HIDDEN), ("self_attn.k_proj", KEY_VALUE, HIDDEN),
                                ("self_attn.v_proj", KEY_VALUE, HIDDEN), ("self_attn.o_proj", HIDDEN, QUERY),
                                ("mlp.router", EXPERTS, HIDDEN)):
        tensors += [(f"{name}.weight", "BF16", [rows, columns]), (f"{name}.bias", "BF16", [rows])]
    tensors.append(("self_attn.sinks", "BF16", [CONFIG["num_attention_heads"]]))
    for name, rows, columns in (("gate_up_proj", 2 * INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
        tensors += [(f"mlp.experts.{name}_bias", "BF16", [EXPERTS, rows]),
                    (f"mlp.experts.{name}_blocks", "U8", [EXPERTS, rows, columns // BLOCK, BLOCK // 2]),
                    (f"mlp.experts.{name}_scales", "U8", [EXPERTS, rows, columns // BLOCK])]
    return [(f"model.layers.{layer}.{name}", dtype, shape) for name, dtype, shape in sorted(tensors)]


def bytes_of(dtype, shape):
    size = DTYPE_BYTES[dtype]
    for length in shape:
        size *= length
    return size


def write_hole(path, tensors):
    """A safetensors file of these tensors, whose data is a hole: all zeros."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape in tensors:
        begin, end = end, end + bytes_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def write_checkpoint(directory, layers=CONFIG["num_hidden_layers"], vocab=VOCAB):
    """The release, or the model of its first layers and tokens. Gives the bytes of its tensors."""
    ends = [("model.embed_tokens.weight", "BF16", [vocab, HIDDEN]), ("model.norm.weight", "BF16", [HIDDEN]),
            ("lm_head.weight", "BF16", [vocab, HIDDEN])]
    stored = [tensor for layer in range(layers) for tensor in layer_tensors(layer)] + ends
    directory.mkdir(parents=True)
    weight_map, total = {}, 0
    for file in range(FILES):
        name = f"model-{file:05d}-of-{FILES - 1:05d}.safetensors"  # counted from 0, as the release does
        part = stored[len(stored) * file // FILES:len(stored) * (file + 1) // FILES]
        total += write_hole(directory / name, part)
        weight_map |= {tensor: name for tensor, _, _ in part}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    tokens = {"vocab_size": vocab} | ({} if vocab == VOCAB else {"pad_token_id": None, "eos_token_id": None})
    (directory / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers} | tokens))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    arguments = parser.parse_args()
    write_checkpoint(arguments.directory, arguments.layers)


if __name__ == "__main__":
    main()
