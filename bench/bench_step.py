"""A training step of SmolLM2-135M on 2 ranks: tieshard beside FSDP2, on the same tokens (`make bench-step`).

    python bench/bench_step.py [--model DIR] [--ranks 2] [--steps 10] [--seq 256] [--repeats 1]

Both sides run in turn, in fp32 and with bf16 compute over fp32 shards. A step is forward, backward and AdamW on one
sequence a rank; step: median seconds of --steps steps after 3 that do not count; peak: resident memory of each rank.
The losses of both sides stand below each table: they show that the same work was done. unsharded: the whole model in
each rank, each training by itself without a word between them (its losses are of another training). What sharding adds
by layers and ranks: bench/bench_sharding.cpp.
"""

import argparse
import functools
import pathlib
import subprocess
import sys

from two_sides import ROOT, machine, median, print_table, run_peer, run_tieshard

WARM_UP = 3  # steps, of every side
SIDES = {"tieshard": run_tieshard, "fsdp2": run_peer, "unsharded": functools.partial(run_peer, loader="unsharded")}


def measure(model, arguments, compute):
    """{side: [results]}, the sides taking turns."""
    job = {"steps": WARM_UP + arguments.steps, "batch": 1, "seq": arguments.seq, "param_dtype": "float32",
           "compute_dtype": compute, "lr": 1e-4, "weight_decay": 0.01, "threads": 1}
    sides = [side for side in SIDES if side != "unsharded" or compute == "float32"]
    results = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side in sides:
            once = SIDES[side]
            results[side].append(once(model, arguments.ranks, **job))
    return results


def step_seconds(runs):
    return median([seconds for result in runs for seconds in result["step_s"][WARM_UP:]])


def report(results):
    ours = step_seconds(results["tieshard"])
    rows = []
    for side, runs in results.items():
        peaks = " / ".join(f"{rank['peak']:,.0f}" for rank in runs[-1]["rss_mib"])
        ratio = "" if side == "tieshard" else f"{ours / step_seconds(runs):.2f}"
        load = median([result["load_s"] for result in runs])
        rows.append([side, f"{load:.2f}", f"{step_seconds(runs):.2f}", peaks, ratio])
    print_table(["", "load s", "step s", "peak MiB of each rank", "ratio ours/peer"], rows)
    for side, runs in results.items():
        print(f"losses {side:9} " + " ".join(f"{loss:.5f}" for loss in runs[-1]["losses"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        model = ROOT / "build" / "smollm2"
        subprocess.run([sys.executable, ROOT / "tools" / "make_smollm2.py", model], check=True)
    print(machine())
    for compute in ("float32", "bfloat16"):
        print(f"\n{model.name}, {arguments.seq} tokens a rank, fp32 shards, {compute} compute, {arguments.ranks} ranks")
        report(measure(model, arguments, compute))


if __name__ == "__main__":
    main()
