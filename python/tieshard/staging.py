"""Parts on their way to a device: read into pinned memory in groups, copied while the next group is read.

Flow:   tieshard.load -> [this] -> tieshard._core, torch.cuda
"""

from __future__ import annotations

import torch

from tieshard.local_parts import boxes, local_tensor
from tieshard.parameter_memory import give_memory

STAGE_BYTES = 64 << 20


def stages(wanted: list) -> list[list]:
    """Cuts (name, parameter, device) triples into groups of about STAGE_BYTES of local elements, in their order."""
    groups, filled = [], 0
    for each in wanted:
        size = local_tensor(each[1]).numel() * each[1].element_size()
        if not groups or filled + size > STAGE_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(each)
        filled += size
    return groups


def copy_to_device(group: list, read) -> None:
    """Reads the parts of one group by `read(rows)` and copies them. Pinned memory is freed by torch once its copy is done."""
    rows, copies = [], []
    for name, parameter, device in group:
        local = local_tensor(parameter)
        give_memory(parameter, device)
        for box in boxes(parameter, name):
            staged = torch.empty(box.size, dtype=local.dtype, pin_memory=device.type == "cuda")
            rows.append((name, staged.data_ptr(), str(local.dtype), box.offset, box.size))
            copies.append((parameter, box, staged))
    read(rows)
    for parameter, box, staged in copies:
        place = tuple(slice(begin, begin + size) for begin, size in zip(box.place, box.size))
        local_tensor(parameter)[place].copy_(staged, non_blocking=True)
