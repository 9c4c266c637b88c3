"""Loading a tied checkpoint onto 2 ranks: tieshard beside the loaders that FSDP2 users have (`make bench-load`).

    python bench/bench_load.py [--model DIR] [--ranks 2] [--repeats 3] [--loaders native dcp slices accelerate]

Without --model: a random Llama of 1.24 billion parameters in BF16 (tools/make_llama.py) into bf16 and into fp32 shards.
Every side runs in turn, --repeats times, with the page cache warm. seconds: until every page of every shard has been
touched. growth: peak resident memory after loading minus that before it, the larger of the ranks; shard: what a rank
has to hold in the end. ratio: tieshard's median over the peer's.
"""

import argparse
import pathlib
import subprocess
import sys

from two_sides import BYTES, ROOT, machine, median, print_table, run_peer, run_tieshard

LOADERS = ["native", "dcp", "slices", "accelerate"]


def shard_mib(model, ranks, dtype):
    """MiB of one rank's shards: a tied weight counted once. Files hold each tensor once, in BF16."""
    stored = sum(file.stat().st_size for file in pathlib.Path(model).glob("*.safetensors"))
    return stored / BYTES["bfloat16"] * BYTES[dtype] / ranks / 2**20


def growth_mib(result):
    return max(rank["after_load"] - rank["before_load"] for rank in result["rss_mib"])


def measure(model, arguments, dtype):
    """{side: [results]}; the sides take turns, so that a drift of the machine meets all of them."""
    sides = {"tieshard": lambda: run_tieshard(model, arguments.ranks, 0, 1, 16, param_dtype=dtype, threads=1)}
    for loader in arguments.loaders:
        sides[f"fsdp2 {loader}"] = lambda loader=loader: run_peer(model, arguments.ranks, loader, param_dtype=dtype)
    results = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side, once in sides.items():
            results[side].append(once())
    return results


def report(results, shard):
    ours = median([result["load_s"] for result in results["tieshard"]])
    rows = []
    for side, runs in results.items():
        seconds = median([result["load_s"] for result in runs])
        rows.append([side, f"{seconds:.2f}", f"{median(list(map(growth_mib, runs))):,.0f}", f"{shard:,.0f}",
                     "" if side == "tieshard" else f"{ours / seconds:.2f}"])
    print_table(["", "seconds", "growth MiB", "shard MiB", "ratio ours/peer"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loaders", nargs="*", choices=LOADERS, default=LOADERS)
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        model = ROOT / "build" / "llama-1b"
        subprocess.run([sys.executable, ROOT / "tools" / "make_llama.py", model], check=True)
    print(machine())
    for dtype in BYTES:
        print(f"\nload {model.name} onto {arguments.ranks} ranks into {dtype} shards, medians of {arguments.repeats}")
        report(measure(model, arguments, dtype), shard_mib(model, arguments.ranks, dtype))


if __name__ == "__main__":
    main()
