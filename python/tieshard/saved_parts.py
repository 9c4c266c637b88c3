"""Which part of a tensor this rank writes into a training checkpoint, whose format knows one dimension for each parameter.

Flow:   tieshard.save -> [this] -> tieshard.local_parts
Source: docs/checkpoints.md: blocks along one dimension; of replicas the first one writes.
"""

from __future__ import annotations

import typing

import torch
from torch.distributed.tensor import DTensor, Shard

from tieshard.errors import Diagnostic, UsageError
from tieshard.local_parts import boxes
from tieshard.ranks import rank_count, this_rank


class SavedPart(typing.NamedTuple):
    """Of one tensor."""

    dim: int  #: that it is cut on; -1: whole, on one rank
    offset: list[int]
    size: list[int]
    writes: bool  #: this rank is the one of the replicas that writes


def refuse(name: str, got: str) -> typing.NoReturn:
    raise UsageError(Diagnostic("bad-shard-dim", what="a parameter is placed in a way that a training checkpoint cannot say", where=name,
                                why=f"expected Shard(dim) on one axis of a mesh of all ranks and Replicate on the others, got {got}",
                                fix="save such a module with torch.distributed.checkpoint, or export it: tieshard.export_hf takes it"))


def shard_axis(name: str, tensor: DTensor) -> int | None:
    """The axis of the mesh that the tensor is cut on; None where it is replicated. Raises UsageError bad-shard-dim."""
    mesh = tensor.device_mesh
    if mesh.size() != rank_count() or mesh.get_coordinate() is None:
        refuse(name, f"a mesh of {mesh.size()} of {rank_count()} ranks")
    cut = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(cut) > 1 or any(type(tensor.placements[axis]) is not Shard for axis in cut):
        refuse(name, f"placements {tuple(tensor.placements)}")
    return cut[0] if cut else None


def saved_part(name: str, tensor: torch.Tensor) -> SavedPart:
    """Raises UsageError bad-shard-dim for placements that the format has no word for."""
    whole = list(tensor.shape)
    if not isinstance(tensor, DTensor):
        dim = 0 if whole and rank_count() == 1 else -1  # of one rank a part is all of it
        return SavedPart(dim, [0] * len(whole), whole, this_rank() == 0)
    axis = shard_axis(name, tensor)
    coordinate = tensor.device_mesh.get_coordinate()
    writes = all(place == 0 for other, place in enumerate(coordinate) if other != axis)
    if axis is None:
        return SavedPart(-1, [0] * len(whole), whole, writes)
    dim = tensor.placements[axis].dim % len(whole)
    held = boxes(tensor, name)
    if held:
        return SavedPart(dim, held[0].offset, held[0].size, writes)
    offset, size = [0] * len(whole), list(whole)
    offset[dim], size[dim] = whole[dim], 0
    return SavedPart(dim, offset, size, writes)


def mesh_axes(tensors: dict[str, torch.Tensor]) -> list[dict]:
    """The ranks as the manifest has them: copies of the model, and ranks that share one."""
    shards = 1
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor) and (axis := shard_axis(name, tensor)) is not None:
            shards = tensor.device_mesh.size(axis)
            break
    return [{"name": "dp_replicate", "size": rank_count() // shards}, {"name": "dp_shard", "size": shards}]
