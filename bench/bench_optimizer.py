"""One optimizer step over the 134.5 M parameters of SmolLM2-135M on one thread, tieshard beside PyTorch's fused ones, and
what the guard's check takes of a training step (`make bench-optimizer`).

    python bench/bench_optimizer.py [--program build/release/bench/bench_optimizer] [--rounds 3]

Both sides run in turn, in processes of their own, medians of 9 steps each, then of the rounds. Copy rate: a memcpy as
large as the parameters in tieshard's process, bytes read and written. Bound of AdamW in float32: 28 bytes a parameter
(read parameter, gradient and both moments; write parameter and moments) at that rate. Exit status 1 when a goal is missed:

    AdamW, float32: at most 0.6 x PyTorch's fused step or 1.2 x the bound, whichever is larger
    guard's check:  under 0.1 % of a training step
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

from two_sides import ROOT, machine, print_table, run

ADAMW_BYTES = 28  # a parameter
ADAMW = "adamw float32"
OF_PEER, OF_BOUND, OF_STEP = 0.6, 1.2, 0.001
WARM_UP, RUNS = 2, 9


def shapes():
    """Of SmolLM2-135M, the tied table once."""
    layer = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536), (576,), (576,)]
    return [(49152, 576), *layer * 30, (576,)]


def peer():
    """Prints what PyTorch's fused optimizers take, by the names of our rows."""
    import torch

    torch.set_num_threads(1)
    optimizers = {
        ADAMW: (torch.float32, lambda held: torch.optim.AdamW(held, 1e-4, fused=True)),
        "adamw bfloat16": (torch.bfloat16, lambda held: torch.optim.AdamW(held, 1e-4, fused=True)),
        "sgd momentum float32": (torch.float32, lambda held: torch.optim.SGD(held, 1e-4, momentum=0.9, fused=True)),
    }
    seconds = {}
    for name, (dtype, make) in optimizers.items():
        parameters = [torch.nn.Parameter(torch.full(shape, 0.02, dtype=dtype)) for shape in shapes()]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer, times = make(parameters), []
        for _ in range(WARM_UP + RUNS):
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
        seconds[name] = statistics.median(times[WARM_UP:])
        del optimizer, parameters
    print(json.dumps({"parameters": sum(torch.Size(shape).numel() for shape in shapes()), "step_s": seconds}))


def medians(results):
    """The medians of every number in results of one form."""
    first = results[0]
    if isinstance(first, dict):
        return {key: medians([result[key] for result in results]) for key in first}
    return statistics.median(results)


def report(ours, theirs):
    """Prints the tables. @returns whether both goals are met"""
    rate, parameters = ours["copy_bytes_per_s"], ours["parameters"]
    if theirs["parameters"] != parameters:
        raise SystemExit(f"the sides step {parameters} and {theirs['parameters']} parameters")
    rows = []
    for name, seconds in ours["step_s"].items():
        other = theirs["step_s"].get(name)
        rows.append([name, f"{seconds * 1e3:.1f}", f"{other * 1e3:.1f}" if other else "",
                     f"{seconds / other:.2f}" if other else ""])
    print_table([f"one step over {parameters / 1e6:.1f} M parameters", "tieshard ms", "torch fused ms", "ratio"], rows)
    bound = ADAMW_BYTES * parameters / rate
    step, allowed = ours["step_s"][ADAMW], max(OF_PEER * theirs["step_s"][ADAMW], OF_BOUND * bound)
    fast = step <= allowed
    print(f"\ncopy {rate / 1e9:.1f} GB/s; bound of 28 bytes a parameter {bound * 1e3:.1f} ms; "
          f"{ADAMW} is {step / bound:.2f} x the bound")
    print(f"goal: at most {allowed * 1e3:.1f} ms, the larger of {OF_PEER} x torch and {OF_BOUND} x the bound: "
          f"{'met' if fast else 'missed'}")
    check, whole = ours["guard_check_s"], ours["training_step_s"]
    cheap = check <= OF_STEP * whole
    print(f"guard's check {check * 1e6:.0f} us of a training step of {whole:.2f} s: {check / whole * 100:.4f} %; "
          f"goal: under {OF_STEP * 100:.1f} %: {'met' if cheap else 'missed'}")
    return fast and cheap


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "release" / "bench" / "bench_optimizer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return peer()
    print(machine(), flush=True)
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(json.loads(run([arguments.program])))
        theirs.append(json.loads(run([sys.executable, __file__, "--peer"])))
    return 0 if report(medians(ours), medians(theirs)) else 1


if __name__ == "__main__":
    sys.exit(main())
