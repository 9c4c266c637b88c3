"""Which part of a parameter this rank holds: the boxes of a tensor or a DTensor under any placement.

Flow:   torch.nn.Parameter -> [this] -> tieshard.loading
Source: torch.distributed.tensor: Shard cuts as torch.chunk does; the axes of the mesh cut one after another.
"""

from __future__ import annotations

import itertools
import typing

import torch
from torch.distributed.tensor import DTensor

from tieshard.errors import Diagnostic, UsageError


class Box(typing.NamedTuple):
    """Elements [offset, offset + size) of each dimension of the whole parameter, and where they lie in the local tensor."""

    offset: list[int]
    size: list[int]
    place: list[int]


def local_tensor(parameter: torch.Tensor) -> torch.Tensor:
    """The memory of this rank: of a DTensor its local tensor, else the tensor itself."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter.detach()


def refuse_placement(name: str, placement) -> typing.NoReturn:
    raise UsageError(Diagnostic("bad-shard-dim", what="a parameter is placed in a way that has no part for each rank", where=name,
                                why=f"expected Shard or Replicate on every axis of the mesh, got {placement}",
                                fix="load before the module is given such placements"))


def indices_of(parameter: DTensor, name: str) -> list[torch.Tensor]:
    """For each dimension the indices that this rank holds, in the order in which its local tensor has them."""
    held = [torch.arange(size) for size in parameter.shape]
    mesh = parameter.device_mesh
    coordinate = mesh.get_coordinate()
    for axis, placement in enumerate(parameter.placements):
        if placement.is_replicate():
            continue
        if not hasattr(placement, "dim"):
            refuse_placement(name, placement)
        split = getattr(placement, "split_factor", 1)  # an axis that cut before those to its left: FSDP over tensor parallelism
        pieces = torch.chunk(held[placement.dim], split) if split > 1 else [held[placement.dim]]
        held[placement.dim] = torch.cat([chunk(piece, mesh.size(axis), coordinate[axis]) for piece in pieces])
    return held


def chunk(indices: torch.Tensor, count: int, index: int) -> torch.Tensor:
    """Chunk `index` of `count`; empty at the end where there are fewer."""
    chunks = torch.chunk(indices, count)
    return chunks[index] if index < len(chunks) else indices[:0]


def runs(indices: torch.Tensor) -> list[tuple[int, int, int]]:
    """(first index, length, place) of each run of neighbours."""
    if indices.numel() == 0:
        return []
    breaks = (torch.nonzero(indices[1:] != indices[:-1] + 1).flatten() + 1).tolist()
    edges = [0, *breaks, indices.numel()]
    return [(int(indices[begin]), end - begin, begin) for begin, end in itertools.pairwise(edges)]


def boxes(parameter: torch.Tensor, name: str) -> list[Box]:
    """The boxes whose elements this rank holds: one, but for strided placements; none for an empty part."""
    if not isinstance(parameter, DTensor):
        return [Box([0] * parameter.dim(), list(parameter.shape), [0] * parameter.dim())] if parameter.numel() else []
    found = []
    for each in itertools.product(*(runs(indices) for indices in indices_of(parameter, name))):
        found.append(Box([run[0] for run in each], [run[1] for run in each], [run[2] for run in each]))
    return found
