"""Stored names and layouts that a transformers model has others for: renamed, and parameters made of several stored tensors.

Flow:   transformers' conversion mapping, tieshard.Checkpoint -> [this] -> tieshard.loading
Source: transformers 5 (core_model_loading): a mixture stores each expert by itself and holds all of a layer in one parameter.
"""

from __future__ import annotations

import dataclasses
import os

import torch

from tieshard.errors import Diagnostic, InputError
from tieshard.ledger import LedgerEntry
from tieshard.local_parts import boxes, local_tensor
from tieshard.module_table import plain_name

WIDE = {"F16", "BF16", "F32", "F64"}


@dataclasses.dataclass
class Merged:
    """Parameters that one conversion makes of several stored tensors."""

    converter: object  #: transformers' WeightConverter, of this parameter alone
    targets: list[str]  #: names of parameters, the first one first
    sources: list[tuple[str, str]]  #: stored name and the pattern that it matched, in the order of their numbers


@dataclasses.dataclass
class Conversions:
    """What has to be done to a checkpoint's tensors before they have the module's names."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)  #: stored name -> the module's
    merged: list[Merged] = dataclasses.field(default_factory=list)

    @property
    def targets(self) -> set[str]:
        """Parameters that the merged ones fill."""
        return {target for each in self.merged for target in each.targets}

    @property
    def sources(self) -> set[str]:
        """Stored tensors that they are made of."""
        return {name for each in self.merged for name, _ in each.sources}


def find_conversions(module: torch.nn.Module, checkpoint) -> Conversions:
    """Those that transformers would make for this model; none for a module that is not of transformers."""
    found = Conversions()
    if not (hasattr(module, "base_model_prefix") and hasattr(module, "_init_weights")):
        return found
    import copy

    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    transforms = get_model_conversion_mapping(module)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    known = {plain_name(name): tensor for name, tensor in module.state_dict().items()}
    merged: dict[str, Merged] = {}
    for stored in sorted(checkpoint, key=dot_natural_key):
        name, pattern = rename_source_key(stored, renamings, converters, module.base_model_prefix, known)
        if stored in known or name not in known:
            continue
        if pattern is None:
            if name not in checkpoint and name not in found.names.values():  # else the one that has the name already
                found.names[stored] = name
            continue
        if name not in merged:
            converter = copy.deepcopy(next(each for each in converters if pattern in each.source_patterns))
            first = converter.target_patterns[0]
            merged[name] = Merged(converter, [name.replace(first, other) for other in converter.target_patterns], [])
        merged[name].sources.append((stored, pattern))
    found.merged = list(merged.values())
    return found


def experts_of(each: Merged, parts: list) -> range | None:
    """Where experts are stacked on dim 0 and nothing else touches that dim: those of this rank; else None, for all."""
    operations = each.converter.operations
    stacked = type(operations[0]).__name__ == "MergeModulelist" and getattr(operations[0], "dim", None) == 0
    others = all(type(operation).__name__ == "Concatenate" and operation.dim > 0 for operation in operations[1:])
    if not (stacked and others and len(each.targets) == 1 and len(parts) == 1):
        return None
    return range(parts[0].offset[0], parts[0].offset[0] + parts[0].size[0])


def require_whole(each: Merged, checkpoint, shape: torch.Size) -> None:
    """Raises InputError: dtype-not-loadable for quantised sources, missing-parameter where experts are missing."""
    for name, _ in each.sources:
        if checkpoint[name].dtype not in WIDE:
            raise InputError(Diagnostic(
                "dtype-not-loadable", what="a parameter is stored in a dtype that cannot be trained", where=f"{name}, of {each.targets[0]}",
                why=f"expected F16, BF16, F32 or F64 of a tensor that is merged with others, got {checkpoint[name].dtype}",
                fix="dequantise the checkpoint first"))
    if type(each.converter.operations[0]).__name__ != "MergeModulelist":
        return
    counts = {pattern: sum(matched == pattern for _, matched in each.sources) for pattern in each.converter.source_patterns}
    if any(count != shape[0] for count in counts.values()):
        raise InputError(Diagnostic(
            "missing-parameter", what="a parameter has no value in the checkpoint", where=each.targets[0],
            why=f"expected {shape[0]} stored tensors of each kind, got " + ", ".join(f"{count} of {name}" for name, count in counts.items()),
            fix="compare config.json's number of experts with the files"))


def load_merged(each: Merged, module: torch.nn.Module, checkpoint, parameters: dict) -> list[LedgerEntry]:
    """Makes the parameters of one conversion and copies this rank's parts of them; gives their entries.

    Holds one such parameter at a time: of stacked experts this rank's only, of others the whole.
    """
    first = parameters[each.targets[0]]
    require_whole(each, checkpoint, first.shape)
    experts = experts_of(each, boxes(first, each.targets[0]))
    for pattern in each.converter.source_patterns:
        names = [name for name, matched in each.sources if matched == pattern]
        for name in names if experts is None else names[experts.start:experts.stop]:
            each.converter.add_tensor(each.targets[0], name, pattern, lambda name=name: checkpoint[name].torch())
    empty = experts is not None and len(experts) == 0
    made = {} if empty or not each.converter.collected_tensors else each.converter.convert(
        each.targets[0], model=module, config=getattr(module, "config", None))
    for target in each.targets:
        if target in made:
            value = made[target][0] if isinstance(made[target], list) else made[target]
            copy_parts(target, parameters[target], value, experts)
    return [entry_of(each, target, parameters[target], checkpoint) for target in each.targets]


def copy_parts(target: str, parameter: torch.Tensor, value: torch.Tensor, experts: range | None) -> None:
    expected = list(parameter.shape)
    if experts is not None:
        expected[0] = len(experts)
    if list(value.shape) != expected:
        raise InputError(Diagnostic("shape-mismatch", what="a stored shape is not the one that the config asks for", where=target,
                                    why=f"expected {expected}, got {list(value.shape)} of the stored tensors together",
                                    fix="compare config.json with the files"))
    for box in boxes(parameter, target):
        begin = list(box.offset)
        if experts is not None:
            begin[0] -= experts.start
        part = value[tuple(slice(first, first + size) for first, size in zip(begin, box.size))]
        local_tensor(parameter)[tuple(slice(first, first + size) for first, size in zip(box.place, box.size))].copy_(part)


def entry_of(each: Merged, target: str, parameter: torch.Tensor, checkpoint) -> LedgerEntry:
    name = each.sources[0][0]
    tensor = checkpoint.stored(name)
    more = len(each.sources) - 1
    return LedgerEntry(name=target, aliases=[], stored_name=f"{name} and {more} more" if more else name,
                       file=os.path.basename(checkpoint.file_of(tensor)), offset=tensor.offset, encoding="merged",
                       stored_dtype=tensor.dtype, scales="", initialised="", shape=tuple(parameter.shape),
                       elements=local_tensor(parameter).numel(), mapped=False)
