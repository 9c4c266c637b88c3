"""Under which names a module's tensors are stored for transformers: renamings undone, merged parameters taken apart again.

Flow:   torch.nn.Module -> [this] -> tieshard.export_hf
Source: transformers 5's save_pretrained (core_model_loading.revert_weight_conversion). It is run on tensors without bytes: what comes
        out are views of what went in, and a view says which part of which parameter it is. What is no such part is refused.
"""

from __future__ import annotations

import math
import re
import typing

import torch
from torch.overrides import TorchFunctionMode

from tieshard.errors import Diagnostic, SharedObjectError, UsageError
from tieshard.held_tensors import aliases_of, held_tensors
from tieshard.module_table import plain_name
from tieshard.module_ties import declared_ties


class StoredPart(typing.NamedTuple):
    """A tensor of the files: elements [offset, offset + size) of a parameter, row-major, in the shape that it is stored in."""

    name: str
    parameter: str
    offset: list[int]
    size: list[int]
    shape: list[int]


class WithoutCopies(TorchFunctionMode):
    """contiguous() gives the view itself, so that it can be traced to its parameter."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.contiguous:
            return args[0]
        return function(*args, **(kwargs or {}))


def stored_parts(module: torch.nn.Module) -> list[StoredPart]:
    """Each storage once, under the name that save_pretrained would give it, in registration order.

    Raises SharedObjectError tie-not-shared (a tie of the config that the module has lost), UsageError not-convertible.
    """
    require_ties(module)
    tensors = held_tensors(module)
    blank = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()}
    refuse_more_than_weights(module)
    kept = kept_names(module)
    by_name = {kept.get(name, name): tensor for name, tensor in blank.items() if not is_ignored(module, kept.get(name, name))}
    if not is_transformers(module):
        return [whole_part(kept.get(name, name), name, tensor) for name, tensor in blank.items()]
    from transformers.core_model_loading import revert_weight_conversion

    with WithoutCopies(), torch.no_grad():
        stored = revert_weight_conversion(module, dict(by_name))
    places = {tensor.untyped_storage()._cdata: (name, tensor) for name, tensor in blank.items()}
    parts = [part_of(name, view, places) for name, view in stored.items()]
    require_each_once(parts, by_name, places)
    order = {name: index for index, name in enumerate(blank)}
    return sorted(parts, key=lambda part: (order[part.parameter], part.offset))


def is_transformers(module: torch.nn.Module) -> bool:
    return hasattr(module, "base_model_prefix") and hasattr(module, "_init_weights")


def is_ignored(module: torch.nn.Module, name: str) -> bool:
    return any(re.search(pattern, name) for pattern in getattr(module, "_keys_to_ignore_on_save", None) or ())


def whole_part(name: str, parameter: str, tensor: torch.Tensor) -> StoredPart:
    return StoredPart(name, parameter, [0] * tensor.dim(), list(tensor.shape), list(tensor.shape))


def kept_names(module: torch.nn.Module) -> dict[str, str]:
    """By canonical name, the name that transformers stores a tied weight under where that is another one."""
    names: dict[str, list[str]] = {}
    for canonical, alias in aliases_of(module):
        names.setdefault(canonical, [canonical]).append(alias)
    declared = {alias for alias, _ in declared_ties(module)}
    return {canonical: next((name for name in group if name not in declared), canonical) for canonical, group in names.items()}


def require_ties(module: torch.nn.Module) -> None:
    """Raises SharedObjectError where a name that the config ties is a tensor of its own: it would be stored as a copy, or lost."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for alias, canonical in declared_ties(module):
        if alias in parameters and canonical in parameters and parameters[alias] is not parameters[canonical]:
            raise SharedObjectError(Diagnostic(
                "tie-not-shared", what="names that should be one tensor are two", where=f"{canonical} and {alias}",
                why="the model's config ties them, and the module has two tensors under these names",
                fix="tie them before training (model.tie_weights()), or set tie_word_embeddings=False in the config to store two"))


def refuse_more_than_weights(module: torch.nn.Module) -> None:
    """Raises UsageError not-convertible for adapters, loaded by transformers or put in by PEFT, and for a quantiser's model."""
    quantised = getattr(module, "hf_quantizer", None) is not None
    if not quantised and (place := adapter_of(module)) is None:
        return
    got = "a model of a quantiser" if quantised else f"an adapter of PEFT{f' in {place}' if place else ''}"
    raise UsageError(Diagnostic("not-convertible", what="a model is more than the weights that an export writes",
                                where=type(module).__name__, why=f"expected plain weights, got {got}",
                                fix="dequantise the model first" if quantised else
                                "an adapter of PEFT is to be merged first: model.merge_and_unload(), and export what that gives"))


def adapter_of(module: torch.nn.Module) -> str | None:
    """The first submodule that is PEFT's, a PeftModel or a layer with an adapter; "" for the module itself, None: there is none."""
    if getattr(module, "_hf_peft_config_loaded", False):
        return ""
    for name, part in module.named_modules():
        if any(kind.__module__.split(".")[0] == "peft" for kind in type(part).__mro__):
            return plain_name(name)
    return None


def refuse(name: str, why: str) -> typing.NoReturn:
    raise UsageError(Diagnostic("not-convertible", what="transformers stores a parameter in a way that cannot be undone here", where=name,
                                why=why, fix="gather the model and call its save_pretrained"))


def part_of(name: str, view: torch.Tensor, places: dict) -> StoredPart:
    """Which part of which parameter `view` is. Raises UsageError not-convertible where it is no box of one."""
    if view.untyped_storage()._cdata not in places:
        refuse(name, "expected a part of one parameter, got values that are computed")
    parameter, whole = places[view.untyped_storage()._cdata]
    rest, offset = view.storage_offset(), []
    for stride in whole.stride():
        offset.append(rest // stride if stride else 0)
        rest -= offset[-1] * stride
    inner = [(size, stride) for size, stride in zip(view.shape, view.stride()) if size != 1]
    size = []
    for stride, extent in zip(whole.stride(), whole.shape):
        taken = bool(inner) and extent != 1 and inner[0][1] == stride
        size.append(inner.pop(0)[0] if taken else 1)
    fits = all(begin + count <= extent for begin, count, extent in zip(offset, size, whole.shape))
    if inner or not fits or math.prod(size) != view.numel() or view.dtype != whole.dtype:
        refuse(name, f"expected a part of {parameter} in its order, got a view of sizes {list(view.shape)}, strides {list(view.stride())}")
    return StoredPart(name, parameter, offset, size, list(view.shape))


def require_each_once(parts: list[StoredPart], by_name: dict, places: dict) -> None:
    """Every element of every parameter leaves once."""
    stored: dict[str, int] = {}
    for part in parts:
        stored[part.parameter] = stored.get(part.parameter, 0) + math.prod(part.size)
    for name, tensor in by_name.items():
        parameter = places[tensor.untyped_storage()._cdata][0]
        if stored.get(parameter, 0) != tensor.numel():
            refuse(name, f"expected its {tensor.numel()} elements in the files, got {stored.get(parameter, 0)}")
