"""LoRA on SmolLM2-135M, 2 ranks, base bfloat16 and mapped: tieshard beside PyTorch with PEFT, on the same tokens and from the
same adapter, and beside tieshard's own full training in float32 (`make bench-lora`).

    python bench/bench_lora.py [--model DIR] [--ranks 2] [--steps 10] [--seq 256] [--r 16] [--repeats 1]

A step is forward, backward and AdamW on one sequence a rank; step: median seconds of --steps steps after 3 that do not count;
peak: resident memory of each rank. Exit status 1 when the largest peak with the adapter is above 0.4 of the full training's.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from two_sides import PEER, ROOT, machine, median, print_table, run, run_tieshard

WARM_UP = 3  # steps, of every side
GOAL = 0.4  # of the peak of full training
PEFT = PEER.parent / "peft_peer.py"


def run_peft(arguments, model, adapter):
    output = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", arguments.ranks, PEFT,
                  model, adapter, "--steps", WARM_UP + arguments.steps, "--seq", arguments.seq, "--dtype", "bfloat16"])
    return json.loads(output.splitlines()[-1])


def run_ours(arguments, model, **job):
    return run_tieshard(model, arguments.ranks, WARM_UP + arguments.steps, 1, arguments.seq, switches=["--no-export"],
                        lr=1e-4, weight_decay=0.01, threads=1, **job)


def measure(arguments, model, adapter):
    """{side: [results]}, the sides taking turns."""
    sides = {
        "tieshard LoRA": lambda: run_ours(arguments, model, adapter=adapter, param_dtype="bfloat16", shard_dim="first"),
        "PyTorch + PEFT": lambda: run_peft(arguments, model, adapter),
        "tieshard full fp32": lambda: run_ours(arguments, model, param_dtype="float32"),
    }
    results = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side, once in sides.items():
            results[side].append(once())
    return results


def largest_peak(runs):
    return max(rank["peak"] for result in runs for rank in result["rss_mib"])


def report(results):
    rows = []
    for side, runs in results.items():
        step = median([seconds for result in runs for seconds in result["step_s"][WARM_UP:]])
        peaks = " / ".join(f"{rank['peak']:,.0f}" for rank in runs[-1]["rss_mib"])
        rows.append([side, f"{step:.3f}", f"{1 / step:.2f}", peaks])
    print_table(["", "step s", "steps/s", "peak MiB of each rank"], rows)
    for side, runs in results.items():
        print(f"losses {side:18} " + " ".join(f"{loss:.5f}" for loss in runs[-1]["losses"]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--r", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        model = ROOT / "build" / "smollm2"
        subprocess.run([sys.executable, ROOT / "tools" / "make_smollm2.py", model], check=True)
    print(machine())
    print(f"\n{model.name}, {arguments.seq} tokens a rank, r = {arguments.r} on q_proj and v_proj, {arguments.ranks} ranks")
    with tempfile.TemporaryDirectory(prefix="tieshard-bench-") as folder:
        run([sys.executable, PEFT, model, folder, "--make", "--r", arguments.r, "--alpha", 2 * arguments.r])
        results = measure(arguments, model, folder)
    report(results)
    share = largest_peak(results["tieshard LoRA"]) / largest_peak(results["tieshard full fp32"])
    print(f"\npeak with the adapter: {share:.2f} of full training's (goal: at most {GOAL})")
    sys.exit(0 if share <= GOAL else 1)


if __name__ == "__main__":
    main()
