"""Reads a directory of sharded safetensors with PyTorch's own reader into FSDP2 tensors, and writes what it got.

    torchrun --nproc-per-node N dcp_reader.py DIRECTORY NAMES.json OUT.safetensors

NAMES.json: {name: [dtype, shape]} of the tensors to ask for. Each is a DTensor sharded on its first dimension (replicated
where it has none), as FSDP2 would hold it; rank 0 writes the whole tensors.
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main():
    directory, names, out = sys.argv[1:]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {}
    for name, (dtype, shape) in json.load(open(names)).items():
        before = torch.full(shape, -7, dtype=getattr(torch, dtype))  # what a hole would leave
        state[name] = distribute_tensor(before, mesh, [Shard(0) if shape else Replicate()])
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(directory))
    whole = {name: tensor.full_tensor().contiguous() for name, tensor in state.items()}
    if dist.get_rank() == 0:
        save_file(whole, out)
    dist.barrier()
    dist.destroy_process_group()


main()
