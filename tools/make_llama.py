"""Write a random Llama checkpoint of any size, for benchmarks; the default has the shape of Llama-3.2-1B.

    python tools/make_llama.py OUT [--layers 16] [--hidden 2048] [--vocab 128256] [--untied] [--shard-size 700MB]

1.24 billion parameters by default: BF16, tied, four shards, 2.3 GiB. The values are random; shapes, names and files are
those of the real model. A second run sees that OUT is there and returns at once.
"""

import argparse
import pathlib
import shutil


def make_model(arguments):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=arguments.vocab, hidden_size=arguments.hidden, intermediate_size=4 * arguments.hidden,
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=max(1, arguments.hidden // 256), head_dim=64, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=not arguments.untied, dtype="bfloat16"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048, help="a multiple of 64")
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--untied", action="store_true", help="store a head of its own")
    parser.add_argument("--shard-size", default="700MB")
    arguments = parser.parse_args()
    if arguments.out.exists():
        return
    staging = arguments.out.with_name(arguments.out.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    model = make_model(arguments)
    model.save_pretrained(staging, max_shard_size=arguments.shard_size)
    staging.rename(arguments.out)
    print(f"{arguments.out}: {sum(p.numel() for p in model.parameters()) / 1e6:,.1f} M parameters")


if __name__ == "__main__":
    main()
