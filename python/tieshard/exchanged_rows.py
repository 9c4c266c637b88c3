"""Rows for columns: of a parameter that is cut on another dimension than the first, the ranks exchange what makes whole rows.

Flow:   tieshard.export_hf -> [this] -> torch.distributed.all_to_all_single
Source: runtime/state/export_writer.h: short rows, a part of each on every rank, cost four fifths of the time of an export.
"""

from __future__ import annotations

import typing

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from tieshard.held_tensors import on_host
from tieshard.local_parts import boxes, chunk


class HeldPart(typing.NamedTuple):
    """Elements [offset, offset + size) of a parameter, row-major in memory of the host."""

    values: torch.Tensor
    offset: list[int]
    size: list[int]


def cut_axis(tensor: torch.Tensor) -> int | None:
    """The one axis of the mesh that cuts another dimension than the first; None where there is none, or more than one cut."""
    if not isinstance(tensor, DTensor):
        return None
    cut = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    if len(cut) != 1 or type(tensor.placements[cut[0]]) is not Shard or tensor.placements[cut[0]].dim % tensor.dim() == 0:
        return None
    return cut[0] if tensor.device_mesh.size(cut[0]) > 1 else None


def held_parts(name: str, tensor: torch.Tensor) -> list[HeldPart]:
    """What this rank is to write of a parameter: its own part, or rows. A collective of the ranks that share the parameter."""
    axis = cut_axis(tensor)
    if axis is not None:
        return exchange(tensor, axis)
    local = on_host(tensor)
    held = boxes(tensor, name)
    if len(held) == 1:
        return [HeldPart(local, held[0].offset, held[0].size)]
    places = [tuple(slice(begin, begin + size) for begin, size in zip(box.place, box.size)) for box in held]
    return [HeldPart(local[place].contiguous(), box.offset, box.size) for place, box in zip(places, held)]


def exchange(tensor: DTensor, axis: int) -> list[HeldPart]:
    """Gives every rank of the axis its rows of this rank's columns, and puts together what the others give."""
    mesh, shape = tensor.device_mesh, list(tensor.shape)
    ranks, here, dim = mesh.size(axis), mesh.get_coordinate()[axis], tensor.placements[axis].dim % tensor.dim()
    rows = [chunk(torch.arange(shape[0]), ranks, rank) for rank in range(ranks)]
    columns = [len(chunk(torch.arange(shape[dim]), ranks, rank)) for rank in range(ranks)]
    local = tensor._local_tensor.detach().contiguous()
    item = local.element_size()
    others = torch.Size(shape).numel() // max(1, shape[0] * shape[dim])  # elements of the other dimensions
    given = [len(each) * columns[here] * others * item for each in rows]
    taken = [len(rows[here]) * each * others * item for each in columns]
    received = torch.empty(sum(taken), dtype=torch.uint8, device=local.device)
    sent = local.view(-1).view(torch.uint8) if local.numel() else torch.empty(0, dtype=torch.uint8, device=local.device)
    dist.all_to_all_single(received, sent, taken, given, group=mesh.get_group(axis))
    if not len(rows[here]) or not received.numel():
        return []
    pieces = []
    for rank, piece in enumerate(received.cpu().split(taken)):
        size = [len(rows[here]), *shape[1:]]
        size[dim] = columns[rank]
        pieces.append(piece.clone().view(local.dtype).view(size))
    values = torch.cat(pieces, dim=dim)
    return [HeldPart(values, [int(rows[here][0])] + [0] * (len(shape) - 1), list(values.shape))]
