"""The same job under PyTorch FSDP2: load a Hugging Face Llama checkpoint onto CPU ranks, then train a few steps.

    torchrun --nproc_per_node 2 bench/peers/fsdp2_peer.py MODEL --load native|dcp|slices|accelerate|tieshard --steps 3

Rank 0 prints one JSON line: load_s, load_and_touch_s (until every local page has been touched, too), ready_at (Unix time
of that), rss_mib of each rank (VmHWM before the load, after it, at the end), step_s and losses of each step (the mean of
the ranks' losses; every rank has the same number of targets). The tokens are those of arithmetic_tokens.py.

    native      transformers' own FSDP2 loading: from_pretrained(distributed_config=...)
    dcp         torch.distributed.checkpoint with HuggingFaceStorageReader
    slices      each rank reads its rows with safetensors' get_slice, written by hand
    accelerate  accelerate's fsdp2_load_full_state_dict: rank 0 reads everything and broadcasts
    tieshard    the Python module's load(), from the meta device (build/python, or TIESHARD_PYTHON_DIR)
    unsharded   no FSDP2: each rank has the whole model and trains it by itself, the ranks side by side
"""

import argparse
import glob
import json
import os
import pathlib
import sys
import time
from types import SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.environ.get("TIESHARD_PYTHON_DIR", str(pathlib.Path(__file__).resolve().parents[2] / "build" / "python")))

import torch
import torch.distributed as dist
from arithmetic_tokens import batch_tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM


def peak_rss_mib():
    """VmHWM of this process."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def model_on_meta(path, dtype):
    config = AutoConfig.from_pretrained(path)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return model.to(dtype)


def load_slices(model, path, dtype):
    from safetensors import safe_open

    parameters = dict(model.named_parameters())
    rank, world = dist.get_rank(), dist.get_world_size()
    for file in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        with safe_open(file, framework="pt") as tensors:
            for name in parameters.keys() & set(tensors.keys()):
                rows = parameters[name].shape[0]
                chunk = -(-rows // world)
                first = min(rank * chunk, rows)
                with torch.no_grad():
                    values = tensors.get_slice(name)[first:min(first + chunk, rows)]
                    parameters[name].to_local().copy_(values.to(dtype))


def load_dcp(model, path, dtype):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    dcp.load(dict(model.named_parameters()), storage_reader=HuggingFaceStorageReader(path))


def load_accelerate(model, path, dtype):
    """accelerate refuses FSDP on CPU ranks, so its function is called with what it reads of an Accelerator."""
    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict

    main = dist.get_rank() == 0
    full = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).state_dict() if main else {}
    fsdp2_load_full_state_dict(SimpleNamespace(is_main_process=main, device=torch.device("cpu")), model, full)


def load_tieshard(model, path, dtype):
    import tieshard

    tieshard.load(model, path, threads=1)


LOADERS = {"tieshard": load_tieshard, "slices": load_slices, "dcp": load_dcp, "accelerate": load_accelerate}


def load(arguments, dtype):
    """The sharded model with its weights, by the way that --load names."""
    if arguments.load == "native":
        from transformers.distributed import DistributedConfig

        return AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=dtype, distributed_config=DistributedConfig(fsdp_size=dist.get_world_size()))
    if arguments.load == "unsharded":
        return AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype, attn_implementation="sdpa")
    compute = getattr(torch, arguments.compute_dtype or arguments.param_dtype)
    policy = MixedPrecisionPolicy() if compute == dtype else \
        MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = model_on_meta(arguments.model, dtype)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if arguments.load not in ("accelerate", "tieshard"):
        model.to_empty(device="cpu")
        model.tie_weights()
    LOADERS[arguments.load](model, arguments.model, dtype)
    if arguments.load == "tieshard":
        return model
    model.tie_weights()
    rotary = model.model.rotary_emb  # its buffers are on no disk and hold nothing after to_empty
    initialise = rotary.compute_default_rope_parameters if rotary.rope_type == "default" else rotary.rope_init_fn
    rotary.inv_freq, _ = initialise(model.config)
    rotary.original_inv_freq = rotary.inv_freq.clone()
    return model


def touch(model):
    """Reads one element of each page: a loader that maps files lazily pays for the bytes here."""
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        local.reshape(-1)[::4096 // parameter.element_size()].float().sum().item()


def train(model, arguments):
    """Seconds and loss of each step; a step is forward, backward, AdamW, zero_grad, between two barriers."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=arguments.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=arguments.weight_decay)
    seconds, losses = [], []
    model.train()
    for step in range(arguments.steps):
        tokens = batch_tokens(step, dist.get_rank(), arguments.batch * arguments.seq, model.config.vocab_size)
        ids = torch.from_numpy(tokens).view(arguments.batch, arguments.seq)
        dist.barrier()
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return seconds, losses


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--load", choices=["native", "unsharded", *LOADERS], default="slices")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--param-dtype", default="float32", help="dtype of the sharded parameters")
    parser.add_argument("--compute-dtype", default="", help="dtype of forward and backward; empty: --param-dtype")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo")
    dtype = getattr(torch, arguments.param_dtype)
    model_on_meta(arguments.model, dtype)  # transformers imports the model's code at its first use: not loading
    if arguments.load == "native":
        import transformers.distributed  # noqa: F401
    if arguments.load == "tieshard":
        import tieshard

        tieshard.load  # noqa: B018 (imports what it needs)
    before = peak_rss_mib()
    dist.barrier()
    start = time.perf_counter()
    model = load(arguments, dtype)
    dist.barrier()
    load_s = time.perf_counter() - start
    touch(model)
    dist.barrier()
    load_and_touch_s = time.perf_counter() - start
    ready_at = time.time()
    after = peak_rss_mib()
    seconds, losses = train(model, arguments)
    rss = [None] * dist.get_world_size()
    dist.all_gather_object(rss, {"before_load": before, "after_load": after, "peak": peak_rss_mib()})
    if dist.get_rank() == 0:
        print(json.dumps({"load_s": load_s, "load_and_touch_s": load_and_touch_s, "ready_at": ready_at, "rss_mib": rss,
                          "step_s": seconds, "losses": losses}), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end aborts in some runs, a thread of torch still being alive


if __name__ == "__main__":
    main()
