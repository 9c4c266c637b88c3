"""Loading a tied checkpoint onto 2 ranks: tieshard beside the loaders that FSDP2 users have (`make bench-load`).

    python bench/bench_load.py [--model DIR] [--ranks 2] [--repeats 5] [--loaders native dcp slices accelerate]

Without --model: a random Llama of 1.24 billion parameters in BF16 (tools/make_llama.py) into bf16 and into fp32 shards.
The sides take turns, --repeats times, with the page cache warm, and with the memory warm too (bench/warm_memory.py). In
each turn a side runs twice, and the second run counts: the first pays for the memory that the side before it left (after
transformers' processes the next run of any side takes half as long again).

seconds  until every page of every shard has been touched, model code already imported; median, and the least
ready    from the start of the command until then
growth   peak resident memory after loading minus that before it, the larger of the ranks
floor    the bytes of the files read with pread by one process a rank into fresh memory (bench/read_floor.py)

`first` and `last` are the dimension that tieshard shards on; the tied table lies on its last dimension in both.
Unlike its peers tieshard looks at every value for NaN and infinity; `first, unchecked` is `first` with that switched off.
"""

import argparse
import functools
import pathlib
import subprocess
import sys

from read_floor import floor_seconds
from two_sides import BYTES, ROOT, machine, median, print_table, run_peer, run_tieshard
from warm_memory import warm_memory

LOADERS = ["native", "dcp", "slices", "accelerate", "tieshard"]
PYTHON = "tieshard"  # the Python module's load() under FSDP2, as a peer of the programs
POLICIES = ["first", "last"]
UNCHECKED = "first, unchecked"
OURS = [*POLICIES, UNCHECKED]
ALLOWED_MIB = 128

# (shards, our side, what, peer, the most that ours may be of the peer's)
GOALS = [
    ("bfloat16", "first", "load_and_touch_s", "native", 0.8),
    ("bfloat16", "first", "load_and_touch_s", "accelerate", 0.08),
    ("bfloat16", "first", "ready_s", "native", 0.1),
    ("bfloat16", "last", "load_and_touch_s", "dcp", 1.0),
    ("float32", "first", "load_and_touch_s", "native", 0.5),
    ("float32", "first", "load_and_touch_s", "dcp", 0.5),
    ("float32", "last", "load_and_touch_s", "native", 0.5),
    ("float32", "last", "load_and_touch_s", "dcp", 0.5),
    ("bfloat16", PYTHON, "load_and_touch_s", "native", 1.0),
    ("bfloat16", PYTHON, "load_and_touch_s", "accelerate", 0.1),
    ("float32", PYTHON, "load_and_touch_s", "native", 0.6),
]


def shard_mib(model, ranks, dtype):
    """MiB of one rank's shards: a tied weight counted once. Files hold each tensor once, in BF16."""
    stored = sum(file.stat().st_size for file in weights(model))
    return stored / BYTES["bfloat16"] * BYTES[dtype] / ranks / 2**20


def needed_mib(model, ranks, dtype):
    """Memory of all ranks together."""
    return ranks * (1.05 * shard_mib(model, ranks, dtype) + ALLOWED_MIB)


def weights(model):
    return sorted(pathlib.Path(model).glob("*.safetensors"))


def growth_mib(result):
    return max(rank["after_load"] - rank["before_load"] for rank in result["rss_mib"])


def of(runs, key):
    return median([run[key] for run in runs])


def measure(model, arguments, dtype):
    """{side: [results]}; the sides take turns, so that a drift of the machine meets all of them. The first turn brings
    the files into the page cache and the memory to the machine."""
    def ours(policy, *switches):
        return functools.partial(run_tieshard, model, arguments.ranks, 0, 1, 16, switches=["--no-export", *switches],
                                 param_dtype=dtype, shard_dim=policy, threads=1)

    sides = {policy: ours(policy) for policy in POLICIES}
    sides[UNCHECKED] = ours("first", "--no-check-values")
    for loader in arguments.loaders:
        sides[loader] = functools.partial(run_peer, model, arguments.ranks, loader, param_dtype=dtype, threads=1)
    results = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side, once in sides.items():
            for counts in (False, True):
                warm_memory(needed_mib(model, arguments.ranks, dtype))
                result = once()
                if counts:
                    results[side].append(result)
    return results


def measure_floor(model, arguments):
    """{"4 KiB": [seconds], "2 MiB": [seconds]}, the first turn left out."""
    floors = {"4 KiB": [], "2 MiB": []}
    for turn in range(arguments.repeats + 1):
        for pages, seconds in floors.items():
            warm_memory(needed_mib(model, arguments.ranks, "bfloat16"))
            took = floor_seconds(weights(model), arguments.ranks, pages == "2 MiB")
            if turn > 0:
                seconds.append(took)
    return floors


def report(results, floors, shard):
    rows = []
    for side, runs in results.items():
        name = f"tieshard, {side}" if side in OURS else f"fsdp2, {side}"
        least = min(run["load_and_touch_s"] for run in runs)
        ratios = [f"{of(results[policy], 'load_and_touch_s') / of(runs, 'load_and_touch_s'):.2f}" for policy in POLICIES]
        growth = max(map(growth_mib, runs))
        allowed = 1.05 * shard + ALLOWED_MIB
        rows.append([name, f"{of(runs, 'load_and_touch_s'):.3f}", f"{least:.3f}", f"{of(runs, 'ready_s'):.2f}",
                     f"{growth:,.0f}", f"{allowed:,.0f}", *(["", ""] if side in OURS else ratios)])
    for pages, seconds in floors.items():
        rows.append([f"floor, pages of {pages}", f"{median(seconds):.3f}", f"{min(seconds):.3f}", "", "", "", "", ""])
    print_table(["", "seconds", "least", "ready s", "growth MiB", "1.05 x shard + 128", "first/peer", "last/peer"], rows)


def report_goals(results, dtype):
    """Each goal whose peer was run; returns whether all of them are met."""
    rows = []
    all_met = True
    for shards, ours, what, peer, most in GOALS:
        if shards == dtype and peer in results and ours in results:
            ratio = of(results[ours], what) / of(results[peer], what)
            all_met = all_met and ratio <= most
            rows.append([f"{ours}, {what}", peer, f"{ratio:.3f}", f"{most}", "met" if ratio <= most else "MISSED"])
    print_table(["goal", "peer", "ratio", "at most", ""], rows)
    return all_met


def report_memory(results, shard):
    """Whether our sides stay in their bound."""
    allowed = 1.05 * shard + ALLOWED_MIB
    return all(growth_mib(run) <= allowed for side in OURS for run in results[side])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loaders", nargs="*", choices=LOADERS, default=LOADERS)
    parser.add_argument("--dtypes", nargs="*", choices=list(BYTES), default=["bfloat16", "float32"])
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        model = ROOT / "build" / "llama-1b"
        subprocess.run([sys.executable, ROOT / "tools" / "make_llama.py", model], check=True)
    print(machine())
    met = True
    for dtype in arguments.dtypes:
        print(f"\nload {model.name} onto {arguments.ranks} ranks into {dtype} shards, medians of {arguments.repeats}")
        results = measure(model, arguments, dtype)
        shard = shard_mib(model, arguments.ranks, dtype)
        report(results, measure_floor(model, arguments), shard)
        met = report_goals(results, dtype) and report_memory(results, shard) and met
    print("\nall goals met" if met else "\nsome goals missed")


if __name__ == "__main__":
    main()
