"""Buffers that no file holds: made anew where the module says how, the rest named.

Flow:   torch.nn.Module -> [this] -> tieshard.load, tieshard.resume
Source: transformers' models compute their buffers in _init_weights, for models that were built on the meta device.
"""

from __future__ import annotations

import typing

import torch

from tieshard.module_table import plain_name
from tieshard.parameter_memory import overlaps_itself
from tieshard.write_protection import WriteProtection, generators_kept, memory_of, parameters_set_aside


def other_buffers(module: torch.nn.Module, loaded: typing.Container[str]) -> dict[str, tuple[torch.nn.Module, str]]:
    """Buffers whose values no file gives: by full name, submodule and name there."""
    found = {}
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            full = plain_name(f"{prefix}.{name}" if prefix else name)
            if buffer is not None and full not in loaded:
                found[full] = (submodule, name)
    return found


def recompute(module: torch.nn.Module, others: dict, device: torch.device) -> tuple[list[str], list[str]]:
    """Makes buffers anew; gives the names of those that were made, and of those that stayed as they were.

    Nothing else changes: no parameter, no other buffer, no random generator. One that has memory stays the same object.
    """
    root_of = transformers_roots(module)
    before = {part: dict(part._buffers) for part in module.modules()}
    own: dict[torch.nn.Module, list[str]] = {}
    for submodule, name in others.values():
        own.setdefault(submodule, []).append(name)
    fixed = {memory_of(each) for each in module.parameters()} | {
        memory_of(buffer) for part, named in before.items() for name, buffer in named.items()
        if buffer is not None and name not in own.get(part, ())}
    held = fixed | {memory_of(before[submodule][name]) for submodule, name in others.values()}
    made: dict[int, torch.Tensor] = {}  # by the object that it takes the place of
    with parameters_set_aside(module), generators_kept():
        try:
            for submodule, names in own.items():
                old = {name: made.get(id(before[submodule][name]), before[submodule][name]) for name in names}
                old = {name: buffer for name, buffer in old.items() if memory_of(buffer) not in fixed}
                for name, buffer in remake(submodule, root_of.get(id(submodule)), old, device, held).items():
                    made[id(before[submodule][name])] = settled(old[name], buffer)
                submodule._buffers.update({name: made.get(id(before[submodule][name]), buffer) for name, buffer in old.items()})
                held |= {memory_of(submodule._buffers[name]) for name in old}
        finally:  # under all its names, and without what an initialiser registered anew
            for part, named in before.items():
                part._buffers.update({name: made.get(id(buffer), buffer) for name, buffer in named.items()})
    is_made = {full: id(before[submodule][name]) in made for full, (submodule, name) in others.items()}
    return [full for full, done in is_made.items() if done], [full for full, done in is_made.items() if not done]


def settled(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The value that was made, in the memory of the old one where it has some that fits."""
    fits = not old.is_meta and (old.shape, old.dtype) == (new.shape, new.dtype) and not overlaps_itself(old)
    return old.copy_(new) if fits else new


def transformers_roots(module: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """For each submodule the innermost transformers model that it is a part of."""
    roots = {}
    for candidate in module.modules():  # outer ones first
        if hasattr(candidate, "_init_weights") and hasattr(candidate, "config"):
            for part in candidate.modules():
                roots[id(part)] = candidate
    return roots


def remake(submodule: torch.nn.Module, root: torch.nn.Module | None, old: dict[str, torch.Tensor], device: torch.device,
           held: set[int]) -> dict[str, torch.Tensor]:
    """Lets the module, or the model that it is of, compute the buffers `old` and nothing else in `held`; gives what was made."""
    own = any(parameter is not None for parameter in submodule._parameters.values())
    reset = getattr(submodule, "reset_buffers", None) or (None if own else getattr(submodule, "reset_parameters", None))
    if not old or root is None and reset is None:
        return {}
    blank = {}
    for name, buffer in old.items():
        # what nobody writes shows as NaN (or the lowest number): then this was not how these are made
        blank[name] = torch.full_like(buffer, unlikely(buffer.dtype), device=device if buffer.is_meta else buffer.device)
    submodule._buffers.update(blank)
    with torch.no_grad(), WriteProtection(held, free={memory_of(each) for each in old.values()}) as protection:
        reset() if root is None or reset is not None and hasattr(submodule, "reset_buffers") else root._init_weights(submodule)
    after = {name: submodule._buffers.get(name) for name in old}
    return {name: buffer for name, buffer in after.items()
            if buffer is not None and (memory_of(buffer) in protection.written or not is_untouched(buffer))}


def unlikely(dtype: torch.dtype):
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def is_untouched(buffer: torch.Tensor) -> bool:
    if buffer.numel() == 0:
        return False
    if buffer.dtype == torch.bool:
        return not bool(buffer.any())
    return bool((torch.isnan(buffer) if buffer.dtype.is_floating_point or buffer.dtype.is_complex
                 else buffer == torch.iinfo(buffer.dtype).min).all())
