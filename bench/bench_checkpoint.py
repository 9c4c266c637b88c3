"""Saving, exporting and resharding SmolLM2-135M with AdamW state on 2 ranks, beside PyTorch (`make bench-checkpoint`).

    python bench/bench_checkpoint.py [--model DIR] [--tries 3] [--seq 256] [--dtype float32] [--work DIR]

Everything is synced to the same disk, on both sides and inside the measured time; times are medians of --tries after one that
does not count. Ours and the peer (bench/peers/checkpoint_peer.py) follow each other in one run; reshard and copy take turns.

    save      all ranks' state, in turn with training; ours with hashes, against dcp.save
    blocked   how long a save in the background holds the training thread, against dcp.async_save
    export    to a plain Hugging Face directory, read back and compared, against gathering and save_pretrained
    reshard   2 to 3 ranks and back, `tieshard reshard`, against `cp -r` and `sync` of the same bytes in turn

Memory of the export: what a rank has at its peak (VmHWM) above what it had before it loaded, in a run without steps. That of
reshard is its VmHWM. --work is a directory on the disk to measure, with room for 12 GB. The exit status is 1 when a goal is missed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from two_sides import PEER, ROOT, bin_dir, machine, median, print_table, run, single_threaded, write_token_file

CHECKPOINT_PEER = PEER.parent / "checkpoint_peer.py"
RANKS = 2
GOALS = {"save": 0.7, "blocked": 0.5, "export": 0.4, "reshard 2 to 3": 1.7, "reshard 3 to 2": 1.7}
EXPORT_SLACK_MIB, RESHARD_MIB = 64, 256


def read_json(path):
    return json.loads(path.read_text())


class Ours:
    def __init__(self, arguments, model, work):
        self.arguments, self.model, self.work = arguments, model, work
        self.data = work / "tokens.bin"
        vocabulary = read_json(model / "config.json")["vocab_size"]
        write_token_file(self.data, arguments.tries + 1, RANKS, arguments.seq, vocabulary)

    def train(self, steps, *flags):
        """summary.json of a run; OUT is left there."""
        out = self.work / "ours"
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        run([bin_dir() / "tieshard", "train", "--model", self.model, "--data", self.data, "--out", out, "--ranks", RANKS,
             "--steps", steps, "--batch", 1, "--seq", self.arguments.seq, "--lr", 1e-4, "--threads", 1, "--no-shuffle",
             "--param-dtype", "float32", *flags])
        return read_json(out / "summary.json")

    def save(self, every, *flags):
        """What each save but the first took; the newest checkpoint is left at work/saved."""
        steps = every * (self.arguments.tries + 1)
        saves = self.train(steps, "--save-every", every, "--keep", 0, "--no-export", *flags)["saves"]
        saved = self.work / "saved"
        shutil.rmtree(saved, ignore_errors=True)
        (self.work / "ours" / "checkpoints" / f"step-{steps:09}").rename(saved)
        return saves[1:]

    def export(self):
        """Summaries of runs that load and export, after one that does not count."""
        runs = [self.train(0, "--export-dtype", self.arguments.dtype) for _ in range(self.arguments.tries + 1)]
        return runs[1:]


def run_peer(arguments, model, work):
    output = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", RANKS, CHECKPOINT_PEER,
                  model, work / "peer", "--tries", arguments.tries + 1, "--seq", arguments.seq, "--dtype", arguments.dtype])
    shutil.rmtree(work / "peer")
    result = json.loads(output.splitlines()[-1])
    return {name: value[1:] if isinstance(value, list) else value for name, value in result.items()}


def timed(command, out):
    """(seconds, peak MiB) of a command that makes `out`; the disk is idle before."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], env=single_threaded(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for here
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with status {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


def reshard(arguments, source, out, ranks):
    """Seconds of ours and of the copy, which take turns, and our largest peak."""
    ours, copies, peak = [], [], 0
    copy = source.with_name("copy")
    for attempt in range(arguments.tries + 1):
        seconds, mib = timed([bin_dir() / "tieshard", "reshard", source, out, "--ranks", ranks], out)
        copied, _ = timed(["sh", "-c", 'cp -r "$0" "$1" && sync', source, copy], copy)
        shutil.rmtree(copy)
        if attempt > 0:
            ours.append(seconds)
            copies.append(copied)
            peak = max(peak, mib)
    return ours, copies, peak


def tensors_of_ranks(directory):
    """{(rank's part of the file name, tensor): (dtype, hash of its bytes)}; a rank may have one file or two."""
    from safetensors import safe_open

    tensors = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                tensors[path.name.split("-model-")[0], name] = (tensor.dtype, hashlib.sha256(tensor.numpy()).digest())
    return tensors


def export_growth(runs):
    """Largest growth of a rank over load and export, MiB."""
    return max(rank["rss_peak_mib"] - rank["rss_before_load_mib"] for summary in runs for rank in summary["ranks"])


def rows_of(times):
    rows, met = [], True
    for work, (ours, theirs, peer) in times.items():
        ratio = median(ours) / median(theirs)
        met = met and ratio <= GOALS[work]
        spread = f"{min(ours):.2f}-{max(ours):.2f}", f"{min(theirs):.2f}-{max(theirs):.2f}"
        rows.append([work, f"{median(ours):.3f}", spread[0], peer, f"{median(theirs):.3f}", spread[1], f"{ratio:.2f}",
                     f"{GOALS[work]}", "met" if ratio <= GOALS[work] else "MISSED"])
    return rows, met


def bench(arguments, model, work):
    ours = Ours(arguments, model, work)
    # In the background every third step: a save must not wait for the one before, as the peer's does not.
    in_turn, background, exports = ours.save(1), ours.save(3, "--async-save", "wait"), ours.export()
    peer = run_peer(arguments, model, work)
    saved, three, two = work / "saved", work / "three", work / "two"
    up, copy_up, peak_up = reshard(arguments, saved, three, 3)
    down, copy_down, peak_down = reshard(arguments, three, two, 2)
    rows, met = rows_of({
        "save": ([save["seconds"] for save in in_turn], peer["save_s"], "dcp.save"),
        "blocked": ([save["blocked_s"] for save in background], peer["blocked_s"], "dcp.async_save"),
        "export": ([summary["export_s"] for summary in exports], peer["export_s"], "save_pretrained"),
        "reshard 2 to 3": (up, copy_up, "cp -r; sync"),
        "reshard 3 to 2": (down, copy_down, "cp -r; sync"),
    })
    print_table(["", "ours s", "spread", "peer", "peer s", "spread", "ratio", "goal", ""], rows)
    shard = 4 * sum_of_parameters(model) / RANKS / 2**20
    growth, peak, same = export_growth(exports), max(peak_up, peak_down), tensors_of_ranks(saved) == tensors_of_ranks(two)
    print(f"\nbytes: save {in_turn[-1]['bytes']:,} (peer {peer['save_bytes']:,}); in the background until done "
          f"{median([save['seconds'] for save in background]):.2f} s (peer {median(peer['async_s']):.2f} s)")
    print(f"a rank that loads and exports grows by {growth:,.0f} MiB, its shards being {shard:,.0f} MiB (goal: at most "
          f"{shard + EXPORT_SLACK_MIB:,.0f}); the peer's export adds {max(map(max, peer['export_mib'])):,.0f} MiB to rank 0")
    print(f"reshard has {peak:,.0f} MiB at its peak (goal: below {RESHARD_MIB}); 2 to 3 to 2 gives "
          f"{'the same tensors, bit by bit' if same else 'OTHER TENSORS'}", flush=True)
    return met and same and growth <= shard + EXPORT_SLACK_MIB and peak < RESHARD_MIB


def sum_of_parameters(model):
    """Elements of all stored tensors: a tied weight once."""
    from safetensors import safe_open

    total = 0
    for path in model.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                elements = 1
                for size in file.get_slice(name).get_shape():
                    elements *= size
                total += elements
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--dtype", default="float32", help="of the exported tensors, on both sides")
    parser.add_argument("--work", type=pathlib.Path, help="a directory on the disk to measure [build/]")
    arguments = parser.parse_args()
    model = arguments.model
    if model is None:
        model = ROOT / "build" / "smollm2"
        subprocess.run([sys.executable, ROOT / "tools" / "make_smollm2.py", model], check=True)
    print(machine())
    print(f"\n{model.name} with AdamW state, fp32, {RANKS} ranks, medians of {arguments.tries}; exports in {arguments.dtype}")
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-", dir=arguments.work or ROOT / "build") as folder:
        sys.exit(0 if bench(arguments, model, pathlib.Path(folder)) else 1)


if __name__ == "__main__":
    main()
