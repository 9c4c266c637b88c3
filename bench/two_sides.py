"""Runs the peer and tieshard on the same job and reads what each reports. For the benchmarks and tests/python."""

import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER = ROOT / "bench" / "peers" / "fsdp2_peer.py"
sys.path.insert(0, str(PEER.parent))

from arithmetic_tokens import write_token_file

BYTES = {"float32": 4, "bfloat16": 2}


def bin_dir():
    """Where the programs are: TIESHARD_BIN_DIR, else build/bin."""
    return pathlib.Path(os.environ.get("TIESHARD_BIN_DIR", ROOT / "build" / "bin")).resolve()


def single_threaded():
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(command):
    """Standard output of a command that has to succeed."""
    done = subprocess.run([str(word) for word in command], env=single_threaded(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with status {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def train_flags(job):
    return [word for flag, value in job.items() for word in (f"--{flag}", value)]


def run_peer(model, ranks, loader="slices", **job):
    """What FSDP2 measured: load_s, load_and_touch_s, ready_s (from the start of torchrun on), step_s and losses of each
    step, MiB before_load, after_load and peak of each rank.

    @param job  the flags of fsdp2_peer.py, with _ for -
    """
    job = {flag.replace("_", "-"): value for flag, value in job.items()}
    start = time.time()
    output = run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks, PEER,
                  model, "--load", loader, *train_flags(job)])
    result = json.loads(output.splitlines()[-1])
    return {**result, "ready_s": result["ready_at"] - start}


def run_tieshard(model, ranks, steps, batch, seq, switches=(), **job):
    """What tieshard measured, in the form of run_peer, on the same tokens. Its load ends when every page is there.

    @param switches  flags of `tieshard train` without a value
    @param job       further flags of `tieshard train`, with _ for -
    """
    vocab = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory(prefix="tieshard-bench-") as folder:
        data, out = pathlib.Path(folder) / "tokens.bin", pathlib.Path(folder) / "run"
        write_token_file(data, max(steps, 1), ranks, batch * seq, vocab)
        job = {flag.replace("_", "-"): value for flag, value in job.items()}
        start = time.time()
        run([bin_dir() / "tieshard", "train", *switches, "--model", model, "--data", data, "--out", out, "--ranks", ranks,
             "--no-shuffle", "--data-dtype", "uint16" if vocab <= 1 << 16 else "uint32",
             *train_flags({"steps": steps, "batch": batch, "seq": seq, **job})])
        summary = json.loads((out / "summary.json").read_text())
        shutil.rmtree(out)
    ranks_in_order = sorted(summary["ranks"], key=lambda entry: entry["rank"])
    rss = [{"before_load": entry["rss_before_load_mib"], "after_load": entry["rss_after_load_mib"],
            "peak": entry["rss_peak_mib"]} for entry in ranks_in_order]
    return {"load_s": summary["load_s"], "load_and_touch_s": summary["load_s"],
            "ready_s": summary["ready_at"] - start, "rss_mib": rss, "step_s": summary["step_s"], "losses": summary["losses"]}


def machine():
    """One line on what the figures were measured with."""
    cpu = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate"))
    return f"{os.cpu_count()} cores ({cpu}); {packages}; one thread a rank"


def median(values):
    return statistics.median(values) if values else float("nan")


def print_table(header, rows):
    """Columns aligned, the first to the left."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        first, rest = row[0].ljust(widths[0]), [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join([first, *rest]).rstrip(), flush=True)
