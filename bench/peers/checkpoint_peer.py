"""Saving and exporting under PyTorch FSDP2: torch.distributed.checkpoint, and a gathered state dict through transformers.

    torchrun --nproc_per_node 2 bench/peers/checkpoint_peer.py MODEL OUT --tries 4 --seq 256 [--dtype float32]

The model is loaded and sharded as in fsdp2_peer.py, in float32 with AdamW; before each try one step is made, so that there is
state to save, as in a run that saves after every step. In turn, --tries times each, every time into a fresh directory:

    save    dcp.save of model and AdamW state; it syncs its files by itself, the directory is synced in addition
    async   dcp.async_save of the same: blocked_s is how long the call holds the training thread
    export  the full state dict gathered to rank 0, in --dtype, save_pretrained, and a sync of what that wrote

Rank 0 prints one JSON line: save_s, async_s and blocked_s, export_s of each try (barrier to barrier), save_bytes,
export_bytes, and export_mib: what the export adds to the resident memory of each rank at its peak.
"""

import argparse
import json
import os
import pathlib
import shutil
import time
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from arithmetic_tokens import batch_tokens
from fsdp2_peer import load, peak_rss_mib
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict


def sync(directory):
    """What is in it, and its entries; most is on the disk already where the writer synced."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def train_step(model, optimizer, step, length):
    tokens = batch_tokens(step, dist.get_rank(), length, model.config.vocab_size)
    ids = torch.from_numpy(tokens).view(1, length)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def training_state(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save(model, optimizer, out):
    dcp.save(training_state(model, optimizer), checkpoint_id=out)
    if dist.get_rank() == 0:
        sync(out)


def export(model, out, dtype):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(out, state_dict={name: tensor.to(dtype) for name, tensor in state.items()})
        sync(out)


def timed(work):
    """Seconds from barrier to barrier."""
    dist.barrier()
    start = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - start


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def size_of(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


class Bench:
    def __init__(self, arguments):
        self.arguments, self.out = arguments, arguments.out
        job = SimpleNamespace(load="slices", compute_dtype="", param_dtype="float32", model=arguments.model)
        self.model = load(job, torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.background = dist.new_group()  # on the group that training uses, collectives of the two threads would mix
        self.steps = 0
        self.result = {"save_s": [], "async_s": [], "blocked_s": [], "export_s": [], "export_mib": []}

    def step(self):
        train_step(self.model, self.optimizer, self.steps, self.arguments.seq)
        self.steps += 1

    def fresh(self):
        """After a step; rank 0 makes room, and what else waits for the disk is written first."""
        self.step()
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.out, ignore_errors=True)
            os.sync()
        dist.barrier()

    def save(self):
        self.fresh()
        self.result["save_s"].append(timed(lambda: save(self.model, self.optimizer, self.out)))
        self.result["save_bytes"] = size_of(self.out)

    def save_in_background(self):
        self.fresh()
        start = time.perf_counter()
        future = dcp.async_save(
            training_state(self.model, self.optimizer), checkpoint_id=self.out, process_group=self.background)
        self.result["blocked_s"].append(time.perf_counter() - start)
        future.result()
        self.result["async_s"].append(time.perf_counter() - start)

    def export(self):
        self.fresh()
        reset_peak()
        before = peak_rss_mib()
        dtype = getattr(torch, self.arguments.dtype)
        self.result["export_s"].append(timed(lambda: export(self.model, self.out, dtype)))
        grown = [None] * dist.get_world_size()
        dist.all_gather_object(grown, peak_rss_mib() - before)
        self.result["export_mib"].append(grown)
        self.result["export_bytes"] = size_of(self.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--dtype", default="float32", help="of the exported tensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    bench = Bench(arguments)
    for work in (bench.save, bench.save_in_background, bench.export):
        for _ in range(arguments.tries):
            work()
    if dist.get_rank() == 0:
        print(json.dumps(bench.result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end aborts in some runs, a thread of torch still being alive


if __name__ == "__main__":
    main()
