"""An optimizer from before fully_shard goes on with the sharded parameters, and with its state.

Flow:   torch.optim.Optimizer -> [this] -> tieshard.optimizer_guard, the caller
Source: accelerate #3821; accelerate's fsdp2_switch_optimizer_parameters, which drops the state and names no parameter.
"""

from __future__ import annotations

import typing

import torch
from torch.distributed.tensor import DTensor

from tieshard.local_parts import boxes, local_tensor
from tieshard.optimizer_slots import Slot, refuse


def switch_to_sharded(optimizer: torch.optim.Optimizer, mapping: typing.Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Puts for each whole parameter of the optimizer its sharded one, `mapping[whole]`, and cuts its state the same way.

    Tensors of the state that are shaped as the parameter are cut; numbers and step counts stay. What is sharded already (a value of
    `mapping`) stays as it is. No communication; every rank calls it.

    Raises GuardError (a KeyError too) optimizer-parameter for each parameter that `mapping` does not have, for gradients from before, and
    for state that cannot be cut; the optimizer is unchanged then.
    """
    parts = set(mapping.values())

    def require(groups: list[list], extra: list[Slot]) -> None:
        strays = [Slot(number, place, shape_of(parameter), "foreign", tuple(parameter.shape), tuple(parameter.shape))
                  for number, group in enumerate(groups) for place, parameter in enumerate(group) if parameter not in parts]
        if strays or extra:
            raise refuse([*extra, *strays])

    switch_slots(optimizer, mapping, require)


def shape_of(parameter: torch.Tensor) -> str:
    return f"a tensor of shape {list(parameter.shape)}"


def switch_slots(optimizer: torch.optim.Optimizer, mapping: typing.Mapping[torch.Tensor, torch.Tensor], require: typing.Callable,
                 name_of: typing.Callable[[torch.Tensor], str] = shape_of) -> None:
    """Does it when require(groups after it, slots that cannot be switched) lets it; else nothing has changed."""
    groups, extra, state, takers = [], [], {}, {}
    for number, group in enumerate(optimizer.param_groups):
        switched, there = [], set()
        for place, whole in enumerate(group["params"]):
            part = mapping.get(whole, whole)
            kept = optimizer.state.get(whole, {})
            problem = None
            if part is not whole:
                problem = problem_of(optimizer, whole, part, kept, takers.get(part))
                takers[part] = whole
            if problem is not None:
                extra.append(Slot(number, place, name_of(whole), problem[0], tuple(whole.shape),
                                  tuple(local_tensor(part).shape), problem[1]))
            elif part is not whole and kept:
                state[whole] = {key: cut(value, part) if is_whole(value, part) else value for key, value in kept.items()}
            if part is whole or id(part) not in there:
                switched.append(part)  # two that are one weight now: one slot
            there.add(id(part))
        groups.append(switched)
    require(groups, extra)
    for group, switched in zip(optimizer.param_groups, groups, strict=True):
        group["params"][:] = switched
    for whole, part in mapping.items():
        if whole in optimizer.state and whole is not part:
            del optimizer.state[whole]
        if whole in state:
            optimizer.state[part] = state[whole]


def problem_of(optimizer: torch.optim.Optimizer, whole: torch.Tensor, part: torch.Tensor, kept: dict, other) -> tuple[str, str] | None:
    """(kind, detail) of why this slot cannot be switched; None when it can."""
    if tuple(whole.shape) != tuple(part.shape):
        return "foreign", f"its sharded version has shape {list(part.shape)}"
    if whole.grad is not None:
        return "foreign-gradient", ""
    if other is not None and kept and optimizer.state.get(other):
        return "foreign-state", "two weights with a state each are one now; take the one that shall not go on out of its group"
    if isinstance(optimizer, torch.optim.LBFGS) and optimizer.state:
        return "foreign-state", "LBFGS keeps one flat vector of all parameters"
    for key, value in kept.items():
        if holds_tensors(value):
            return "foreign-state", f"{key} is a {type(value).__name__} of tensors"
        if isinstance(value, torch.Tensor) and value.numel() > 1 and not is_whole(value, part) and not is_part_of(value, part):
            return "foreign-state", f"{key} has shape {list(value.shape)}"
    return None


def holds_tensors(value: object) -> bool:
    """Whether a value of the state is a container with a tensor somewhere in it."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    return any(isinstance(part, torch.Tensor) or holds_tensors(part) for part in parts)


def is_whole(value: object, part: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.dim() > 0 and tuple(value.shape) == tuple(part.shape)


def is_part_of(value: torch.Tensor, part: torch.Tensor) -> bool:
    """Whether `value` is cut as the parameter is."""
    if not isinstance(part, DTensor):
        return not isinstance(value, DTensor) and value.shape == part.shape
    return isinstance(value, DTensor) and value.shape == part.shape and tuple(value.placements) == tuple(part.placements)


def cut(value: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """This rank's part of `value`, cut as `part` is."""
    if not isinstance(part, DTensor):
        return value
    local = torch.empty(local_tensor(part).shape, dtype=value.dtype, device=local_tensor(part).device)
    for box in boxes(part, "optimizer state"):
        place = tuple(slice(begin, begin + size) for begin, size in zip(box.place, box.size))
        local[place].copy_(value[tuple(slice(begin, begin + size) for begin, size in zip(box.offset, box.size))])
    return DTensor.from_local(local, part.device_mesh, part.placements, run_check=False, shape=part.shape, stride=part.stride())
