"""Tensors that core has no part in: persistent buffers, and parameters of no floating type. Found and checked before anything is written.

Flow:   torch.nn.Module, tieshard.Checkpoint -> [this] -> tieshard.loading
"""

from __future__ import annotations

import os
import typing

import torch

from tieshard.checkpoint import PACKED
from tieshard.errors import Diagnostic, InputError
from tieshard.ledger import LedgerEntry
from tieshard.local_parts import boxes, local_tensor
from tieshard.module_table import plain_name
from tieshard.parameter_memory import overlaps_itself


class StoredNames:
    """The names that files have for a module's: its own, renamed as transformers does, or with the prefix that core has found."""

    def __init__(self, checkpoint, renamed: dict[str, str], entries: list[dict]):
        """renamed: stored name -> the module's. entries: core's, which say what it has read under which name."""
        self.checkpoint, self.stored = checkpoint, {name: stored for stored, name in renamed.items()}
        pairs = [(entry["name"], entry["stored_name"]) for entry in entries
                 if entry["stored_name"] and entry["stored_name"] not in (*entry["aliases"], *renamed, entry["name"])]
        self.prefixes = {(name[:-len(stored)], "") for name, stored in pairs if name.endswith(f".{stored}")}
        self.prefixes |= {("", stored[:-len(name)]) for name, stored in pairs if stored.endswith(f".{name}")}

    def of(self, name: str) -> str | None:
        """The name in the files; None where they have none."""
        candidates = [name, self.stored.get(name, name)]
        candidates += [theirs + name[len(ours):] for ours, theirs in sorted(self.prefixes) if name.startswith(ours)]
        return next((each for each in candidates if each in self.checkpoint), None)


class StoredBuffer(typing.NamedTuple):
    """A buffer whose value the files hold, and all the places that have this object."""

    stored: str
    buffer: torch.Tensor
    places: list[tuple[torch.nn.Module, str, str]]  #: submodule, name there, full name


class StoredParameter(typing.NamedTuple):
    """A parameter of no floating type, under the name that is stored."""

    name: str
    aliases: list[str]
    stored: str
    parameter: torch.nn.Parameter


def find_buffers(module: torch.nn.Module, names: StoredNames) -> list[StoredBuffer]:
    """Persistent buffers of `module` that the files hold. Raises InputError shape-mismatch, dtype-not-loadable."""
    places: dict[int, list] = {}
    found = []
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            if buffer is None:
                continue
            full = plain_name(f"{prefix}.{name}" if prefix else name)
            places.setdefault(id(buffer), []).append((submodule, name, full))
            stored = names.of(full) if name not in submodule._non_persistent_buffers_set else None
            if stored is not None:
                require_fit(full, stored, buffer, names.checkpoint)
                found.append(StoredBuffer(stored, buffer, places[id(buffer)]))
    return found


def find_parameters(module: torch.nn.Module, names: StoredNames, leave_out: set[str]) -> list[StoredParameter]:
    """Parameters of no floating type, but for those named in `leave_out`. Raises InputError missing-parameter, shape-mismatch, dtype-not-loadable."""
    by_object: dict[int, tuple[torch.nn.Parameter, list[str]]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.dtype.is_floating_point and plain_name(name) not in leave_out:
            by_object.setdefault(id(parameter), (parameter, []))[1].append(plain_name(name))
    found, missing = [], []
    for parameter, (first, *aliases) in by_object.values():
        stored = next((each for each in map(names.of, (first, *aliases)) if each is not None), None)
        if stored is None:
            missing.append(f"{first} ({parameter.dtype})")
            continue
        require_fit(first, stored, parameter, names.checkpoint)
        found.append(StoredParameter(first, aliases, stored, parameter))
    if missing:
        raise InputError(Diagnostic("missing-parameter", what="a parameter has no value in the checkpoint", where=", ".join(missing),
                                    why="expected a stored tensor of its name, got none; init is for floating types",
                                    fix="use the checkpoint that was saved with it, or make it a buffer if it is computed"))
    return found


def require_fit(name: str, stored: str, tensor: torch.Tensor, checkpoint) -> None:
    """The stored shape is the tensor's, and its dtype can have the stored values. Reads them where it is an integer type."""
    view = checkpoint[stored]
    if view.dtype in PACKED:
        raise InputError(Diagnostic("dtype-not-loadable", what="a tensor is stored in a dtype that its place cannot have", where=name,
                                    why=f"expected values for {tensor.dtype}, got packed {view.dtype}", fix="dequantise the checkpoint first"))
    if tuple(view.shape) != tuple(tensor.shape):
        raise InputError(Diagnostic("shape-mismatch", what="a stored shape is not the one that the module has", where=name,
                                    why=f"expected {list(tensor.shape)}, got {list(view.shape)} of {stored}",
                                    fix="build the module as it was when the files were saved"))
    values = view.torch()
    if values.dtype != tensor.dtype and not has_room(tensor.dtype, values):
        raise InputError(Diagnostic("dtype-not-loadable", what="a tensor is stored in a dtype that its place cannot have", where=name,
                                    why=f"expected values that {tensor.dtype} has too, got {view.dtype} of {stored} with others",
                                    fix=f"give the module {values.dtype} there"))


def has_room(dtype: torch.dtype, values: torch.Tensor) -> bool:
    """Whether values become those of `dtype` by rounding at most, and without rounding where it is an integer type."""
    if dtype.is_complex or values.numel() == 0:
        return True
    if values.dtype.is_complex or dtype.is_floating_point:
        return not values.dtype.is_complex
    lowest, highest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if values.dtype.is_floating_point:
        values = values.double()
        if not bool(torch.isfinite(values).all()) or not torch.equal(values, values.round()):
            return False
    numbers = values.numpy()  # which has minima of unsigned types too
    return lowest <= int(numbers.min()) and int(numbers.max()) <= highest


def load_buffers(found: list[StoredBuffer], checkpoint, device: torch.device) -> list[str]:
    """Copies the stored values into the buffers, which leave the meta device, under all their names; gives these."""
    fresh: dict[int, torch.Tensor] = {}
    for each in found:
        if (each.buffer.is_meta or overlaps_itself(each.buffer)) and id(each.buffer) not in fresh:
            fresh[id(each.buffer)] = torch.empty_like(each.buffer, device=device if each.buffer.is_meta else None)
        fresh.get(id(each.buffer), each.buffer).copy_(checkpoint[each.stored].torch())
    for each in found:
        for submodule, name, _ in each.places:
            submodule._buffers[name] = fresh.get(id(each.buffer), each.buffer)
    return list(dict.fromkeys(full for each in found for _, _, full in each.places))


def load_parameter(each: StoredParameter, checkpoint) -> LedgerEntry:
    """Copies this rank's parts of a parameter that has memory."""
    view = checkpoint[each.stored].torch()
    for box in boxes(each.parameter, each.name):
        part = view[tuple(slice(begin, begin + size) for begin, size in zip(box.offset, box.size))]
        local_tensor(each.parameter)[tuple(slice(begin, begin + size) for begin, size in zip(box.place, box.size))].copy_(part)
    tensor = checkpoint.stored(each.stored)
    return LedgerEntry(name=each.name, aliases=each.aliases, stored_name=each.stored, file=os.path.basename(checkpoint.file_of(tensor)),
                       offset=tensor.offset, encoding="plain", stored_dtype=tensor.dtype, scales="", initialised="",
                       shape=tuple(each.parameter.shape), elements=local_tensor(each.parameter).numel(), mapped=False)
