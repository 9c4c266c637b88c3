"""The guard's check of a step that has nothing wrong with it: one pass over parameters and modules.

Flow:   tieshard.fsdp_state, torch.optim.Optimizer -> [this] -> tieshard.optimizer_guard, which tells what is wrong otherwise
"""

from __future__ import annotations

import torch

from tieshard.fsdp_state import DTensor, ManagedParameter, ShardedState


def all_is_well(module: torch.nn.Module | None, managed: list[ManagedParameter], registered: dict, optimizer: torch.optim.Optimizer) -> bool:
    """Whether each trainable parameter is in exactly one slot, is managed and has a gradient of its own kind. False: look closer."""
    slots = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = set(map(id, slots))
    known, wanted = set(), 0
    for each in managed:
        inner = each.inner
        info = inner._module_info
        there = info.module._parameters.get(info.param_name)
        known.add(id(there))
        parameter = inner.sharded_param
        if inner.sharded_state is ShardedState.SHARDED and there is not parameter:
            if not isinstance(there, DTensor):
                return False
            parameter = there
        if parameter.requires_grad:
            gradient = parameter.grad
            if id(parameter) not in held or (gradient is not None and (
                    not isinstance(gradient, DTensor) or gradient._spec.placements != parameter._spec.placements)):
                return False
            wanted += 1
    for parameter in registered:
        known.add(id(parameter))
        if parameter.requires_grad:
            if id(parameter) not in held:
                return False
            wanted += 1
    return wanted == len(held) == len(slots) and (module is None or nothing_else_trains(module, known))


def nothing_else_trains(module: torch.nn.Module, known: set[int]) -> bool:
    waiting, seen = [module], set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if any(id(parameter) not in known and parameter is not None and parameter.requires_grad for parameter in each._parameters.values()):
            return False
        waiting += each._modules.values()
    return True
