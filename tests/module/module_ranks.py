"""Ranks over gloo on this machine: one set of processes runs several checks, each with its own mesh."""

import os
import socket
import sys
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PRELOADED = ["torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "transformers.models.llama.modeling_llama",
             "transformers.models.t5.modeling_t5", "transformers.models.gpt_oss.modeling_gpt_oss", "tieshard"]


def run_one(rank, world, port, check, arguments, failures):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        check(*arguments)
        dist.barrier()
    except BaseException:
        failures.put((rank, traceback.format_exc()))
        raise
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch: a Gloo thread that lets go of a tensor while the interpreter ends aborts the process


def run_on_ranks(world, check, *arguments):
    """Calls check(*arguments) on `world` processes; fails with the traceback of the rank that failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")  # its process imports what takes seconds, once for all ranks of all tests
    context.set_forkserver_preload(PRELOADED)
    failures = context.SimpleQueue()
    processes = [context.Process(target=run_one, args=(rank, world, port, check, arguments, failures)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    hung = [process for process in processes if process.is_alive()]
    for process in hung:
        process.kill()
    failed = [] if failures.empty() else [failures.get()]
    assert not failed, f"rank {failed[0][0]} of {world}:\n{failed[0][1]}"
    assert not hung and all(process.exitcode == 0 for process in processes)
