"""Where a parameter's memory is, and other memory in its place: the object stays the same, for every module and optimizer.

Flow:   tieshard.load, tieshard.resume -> [this] -> torch.utils.swap_tensors
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from tieshard.local_parts import local_tensor


def device_of(parameter: torch.Tensor, device) -> torch.device:
    """Where a parameter's memory is, or will be made."""
    if device is not None:
        return torch.device(device)
    if not parameter.is_meta:
        return parameter.device
    if isinstance(parameter, DTensor) and parameter.device_mesh.device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """An expanded tensor, of which several elements are one place in memory."""
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))


def give_memory(parameter: torch.nn.Parameter, device: torch.device) -> None:
    local = local_tensor(parameter)
    if local.device != device:
        replace_local(parameter, torch.empty(local.shape, dtype=local.dtype, device=device))


def replace_local(parameter: torch.nn.Parameter, local: torch.Tensor) -> None:
    """Gives a parameter, or this rank's part of it, other memory. The object stays the same, for every module and optimizer."""
    if isinstance(parameter, DTensor):
        fresh = DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
                                   stride=parameter.stride())
    elif parameter.device == local.device:
        parameter.data = local
        return
    else:
        fresh = local
    attributes = dict(parameter.__dict__)
    torch.utils.swap_tensors(parameter, torch.nn.Parameter(fresh, requires_grad=parameter.requires_grad))
    for key, value in attributes.items():  # what others keep on a parameter goes with the object, not with its memory
        if key not in ("_local_tensor", "_spec"):
            setattr(parameter, key, value)
