"""Buffers: those that the files hold are loaded, others made anew where the module says how, the rest named.

Flow:   torch.nn.Module, tieshard.Checkpoint -> [this] -> tieshard.loading
Source: transformers' models compute their buffers in _init_weights, for models that were built on the meta device.
"""

from __future__ import annotations

import contextlib

import torch

from tieshard.module_table import plain_name


def stored_buffers(module: torch.nn.Module, checkpoint) -> dict[str, tuple[torch.nn.Module, str]]:
    """By name in the files, the persistent buffers of `module` that they hold: submodule, and name there."""
    found = {}
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            full = plain_name(f"{prefix}.{name}" if prefix else name)
            if buffer is not None and name not in submodule._non_persistent_buffers_set and full in checkpoint:
                found[full] = (submodule, name)
    return found


def load_stored(found: dict, checkpoint, device: torch.device) -> list[str]:
    """Copies the stored values into the buffers, which leave the meta device; gives their names."""
    for full, (submodule, name) in found.items():
        buffer = submodule._buffers[name]
        if buffer.is_meta:
            buffer = submodule._buffers[name] = torch.empty_like(buffer, device=device)
        buffer.copy_(checkpoint[full].torch().reshape(buffer.shape))
    return list(found)


def other_buffers(module: torch.nn.Module, loaded: dict) -> dict[str, tuple[torch.nn.Module, str]]:
    """Buffers whose values no file gives: by full name, submodule and name there."""
    found = {}
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            full = plain_name(f"{prefix}.{name}" if prefix else name)
            if buffer is not None and full not in loaded:
                found[full] = (submodule, name)
    return found


def recompute(module: torch.nn.Module, others: dict, device: torch.device) -> tuple[list[str], list[str]]:
    """Makes buffers anew; gives the names of those that were made, and of those that stayed as they were."""
    made, left, done = [], [], {}
    root_of = transformers_roots(module)
    for full, (submodule, _) in others.items():
        if id(submodule) not in done:
            done[id(submodule)] = remake(submodule, root_of.get(id(submodule)), device)
        (made if done[id(submodule)] else left).append(full)
    return made, left


def transformers_roots(module: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """For each submodule the innermost transformers model that it is a part of."""
    roots = {}
    for candidate in module.modules():  # outer ones first
        if hasattr(candidate, "_init_weights") and hasattr(candidate, "config"):
            for part in candidate.modules():
                roots[id(part)] = candidate
    return roots


def remake(submodule: torch.nn.Module, root: torch.nn.Module | None, device: torch.device) -> bool:
    """Lets the module, or the model that it is of, compute its buffers. False where neither says how."""
    own = [parameter for parameter in submodule._parameters.values() if parameter is not None]
    reset = getattr(submodule, "reset_buffers", None) or (None if own else getattr(submodule, "reset_parameters", None))
    if root is None and reset is None:
        return False
    before = {name: buffer for name, buffer in submodule._buffers.items() if buffer is not None}
    for name, buffer in before.items():
        target = device if buffer.is_meta else buffer.device
        # what nobody writes shows as NaN (or the lowest number): then this was not how these are made
        submodule._buffers[name] = torch.full_like(buffer, unlikely(buffer.dtype), device=target)
    with torch.no_grad(), kept(own):
        reset() if root is None or reset is not None and hasattr(submodule, "reset_buffers") else root._init_weights(submodule)
    untouched = [name for name, buffer in before.items() if is_untouched(submodule._buffers[name])]
    for name in untouched:
        submodule._buffers[name] = before[name]
    return not untouched


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


@contextlib.contextmanager
def kept(parameters):
    """Parameters that an initialiser of transformers leaves alone."""
    before = [getattr(parameter, "_is_hf_initialized", False) for parameter in parameters]
    for parameter in parameters:
        parameter._is_hf_initialized = True
    try:
        yield
    finally:
        for parameter, flag in zip(parameters, before):
            parameter._is_hf_initialized = flag
