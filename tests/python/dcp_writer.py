"""Writes a Hugging Face model with PyTorch's own writer, sharded: one safetensors file a rank.

    torchrun --nproc-per-node N dcp_writer.py MODEL OUT fsdp2
    torchrun --nproc-per-node 4 dcp_writer.py - OUT grid

fsdp2: MODEL under fully_shard (rows of every parameter), its tied weight under one name. grid: tensors of a 2x2 mesh, cut
on both dimensions, on the second only, replicated and 0-dim: "w", "columns", "whole", "one".
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from transformers import AutoModelForCausalLM


def fsdp2_state(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = get_model_state_dict(model)
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def grid_state():
    mesh = init_device_mesh("cpu", (2, 2))

    def spread(tensor, *placements):
        return distribute_tensor(tensor, mesh, list(placements))

    return {"w": spread(torch.arange(48.0).reshape(6, 8), Shard(0), Shard(1)),
            "columns": spread(torch.arange(28.0).reshape(4, 7), Replicate(), Shard(1)),
            "whole": spread(torch.arange(5.0).to(torch.bfloat16), Replicate(), Replicate()),
            "one": spread(torch.tensor(7), Replicate(), Replicate())}


def main():
    folder, out, kind = sys.argv[1:]
    dist.init_process_group("gloo")
    state = grid_state() if kind == "grid" else fsdp2_state(folder)
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path=out, save_distributed=True))
    dist.barrier()
    dist.destroy_process_group()


main()
