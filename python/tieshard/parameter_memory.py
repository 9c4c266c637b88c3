"""Where a parameter's memory is, and other memory in its place: the object stays the same, for every module and optimizer.

Flow:   tieshard.load, tieshard.resume -> [this] -> torch.utils.swap_tensors
"""

from __future__ import annotations

import copyreg
import weakref

import torch
from torch.distributed.tensor import DTensor

from tieshard.errors import Diagnostic, UsageError
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
    if local.device != device or overlaps_itself(local):
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
    hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    exchange(parameter, torch.nn.Parameter(fresh, requires_grad=parameter.requires_grad))
    parameter._backward_hooks, parameter._post_accumulate_grad_hooks = hooks  # which torch calls from the old memory alone
    for key, value in attributes.items():  # what others keep on a parameter goes with the object, not with its memory
        if key not in ("_local_tensor", "_spec"):
            setattr(parameter, key, value)


def exchange(parameter: torch.nn.Parameter, other: torch.nn.Parameter) -> None:
    """Each gets what the other is. As torch.utils.swap_tensors, which refuses weak references, such as those of each LSTM to its
    weights: they follow the object here, as all other references do.

    Raises UsageError still-on-meta where torch's own code holds what would be exchanged: a view of it, a graph.
    """
    try:
        if not weakref.getweakrefs(parameter) or type(parameter) is not type(other) or parameter._use_count() > 1:
            torch.utils.swap_tensors(parameter, other)
            return
    except RuntimeError as error:
        raise UsageError(Diagnostic("still-on-meta", what="a parameter cannot be given memory in the place where it is",
                                    where=f"a parameter of shape {list(parameter.shape)} on {parameter.device}",
                                    why=f"torch refuses: {str(error).splitlines()[0]}",
                                    fix="build the module anew and keep no views of its tensors, or call module.to_empty(device=..) first")
                         ) from error
    for name in ("__dict__", *copyreg._slotnames(type(parameter))):
        ours, theirs = getattr(parameter, name), getattr(other, name)
        setattr(parameter, name, theirs)
        setattr(other, name, ours)
    torch._C._swap_tensor_impl(parameter, other)
