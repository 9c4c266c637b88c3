"""Ties that a module should have and has lost: put back, or refused where that would break what holds the parameters.

Flow:   torch.nn.Module, tieshard._core.TieRegistry -> [this] -> tieshard.loading, tieshard.sharding
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from tieshard._core import TieRegistry
from tieshard.errors import Diagnostic, SharedObjectError
from tieshard.module_table import parameter_table, plain_name


def declared_ties(module: torch.nn.Module) -> list[tuple[str, str]]:
    """(alias, canonical) of the ties that transformers models say they have: `module` itself, or one within a wrapper such as PEFT's."""
    where = holders(module)
    pairs = {}
    for prefix, submodule in module.named_modules():
        declared = vars(submodule).get("all_tied_weights_keys")  # its own: PEFT's wrappers pass attributes through
        for names in declared.items() if isinstance(declared, dict) else ():
            alias, canonical = (name_within(prefix, name, where) for name in names)
            if alias and canonical:
                pairs[alias] = canonical
    return list(pairs.items())


def name_within(prefix: str, name: str, where: dict) -> str:
    """The full name of a submodule's parameter, also where PEFT has put a layer around the one that holds it; "" when it is not there."""
    full = plain_name(f"{prefix}.{name}" if prefix else name)
    owner, _, attribute = full.rpartition(".")
    return next((each for each in (full, f"{owner}.base_layer.{attribute}") if each in where), "")


def holders(module: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, str]]:
    """By full parameter name: the submodule that has it, and its name there."""
    found = {}
    for prefix, submodule in module.named_modules(remove_duplicate=False):
        for name in submodule._parameters:
            found.setdefault(plain_name(f"{prefix}.{name}" if prefix else name), (submodule, name))
    return found


def refuse_two(canonical: str, alias: str, why: str, fix: str) -> SharedObjectError:
    return SharedObjectError(Diagnostic("tie-not-shared", what="names that should be one tensor are two", where=f"{canonical} and {alias}",
                                        why=why, fix=fix))


def mend(module: torch.nn.Module, ties: TieRegistry) -> list[str]:
    """Makes every name of a tie yield the canonical name's tensor; gives the aliases that did not.

    Raises SharedObjectError tie-not-shared where fully_shard took them for two parameters: it would go on with the other one.
    """
    from tieshard.fsdp_state import sharded_as_one  # here, so that modules that are not sharded load under any torch

    where, mended = holders(module), []
    for group in ties:
        owner, attribute = where[group.canonical]
        parameter = owner._parameters[attribute]
        for alias in group.aliases:
            other, name = where[alias.name]
            if other._parameters[name] is parameter:
                continue
            if (isinstance(parameter, DTensor) or isinstance(other._parameters[name], DTensor)) and not sharded_as_one(
                    [(owner, attribute), (other, name)], module):
                raise refuse_two(group.canonical, alias.name,
                                 f"they are tied ({'; '.join(alias.evidence)}), but the module was sharded with two tensors under these names",
                                 "tie them before fully_shard (model.tie_weights(), after to_empty too), or pass untie=[name] for two weights")
            other._parameters[name] = parameter
            mended.append(alias.name)
    return mended


def tie_before_sharding(module: torch.nn.Module, asked: dict[str, str]) -> list[str]:
    """The same before fully_shard, where nothing has been read yet: two tensors become one when neither can lose a value.

    Raises SharedObjectError where they have values that differ, and where two parameters share memory without being one object, which
    torch would cut into two; InputError tie-unknown-name, tie-shape-mismatch, tie-cycle.
    """
    where, mended = holders(module), []
    for group in TieRegistry.from_map({**dict(declared_ties(module)), **asked}, parameter_table(module)):
        owner, attribute = where[group.canonical]
        parameter = owner._parameters[attribute]
        for alias in group.aliases:
            other, name = where[alias.name]
            copy = other._parameters[name]
            if copy is parameter:
                continue
            if not (parameter.is_meta and copy.is_meta) and not same_values(parameter, copy):
                raise refuse_two(group.canonical, alias.name, "they should be tied, but hold values that differ (to_empty, a copy or an "
                                 "assignment has made two tensors)", "model.tie_weights() before fully_shard, after to_empty too; and do without "
                                 "to_empty: tieshard.load gives memory to parameters on the meta device")
            other._parameters[name] = parameter
            mended.append(alias.name)
    refuse_shared_memory(module)
    return mended


def same_values(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.device == right.device and left.dtype == right.dtype and torch.equal(left, right)


def refuse_shared_memory(module: torch.nn.Module) -> None:
    seen: dict[tuple, str] = {}
    for name, parameter in module.named_parameters():
        if parameter.is_meta or isinstance(parameter, DTensor) or parameter.numel() == 0:
            continue
        place = (parameter.device, parameter.data_ptr())
        if place in seen:
            raise refuse_two(seen[place], plain_name(name), "expected one Parameter under both names, got two that share their memory, which "
                             "sharding would part", "assign the Parameter itself: b.weight = a.weight, and not Parameter(a.weight.data)")
        seen[place] = plain_name(name)


def validate_shared_object(module: torch.nn.Module, ties: TieRegistry | None = None) -> None:
    """Every name of each tie yields one object. ties: default, what a transformers model of this config says.

    Raises SharedObjectError (an AssertionError too) tie-not-shared, naming the first two that do not; InputError tie-unknown-name.
    """
    where = holders(module)
    for group in ties if ties is not None else TieRegistry.from_map(dict(declared_ties(module)), parameter_table(module)):
        owner, attribute = where[group.canonical] if group.canonical in where else (None, "")
        for alias in group.aliases:
            other, name = where.get(alias.name, (None, ""))
            if owner is None or other is None or owner._parameters[attribute] is not other._parameters[name]:
                raise refuse_two(group.canonical, alias.name, "expected one object under both names, got "
                                 + ("two" if owner is not None and other is not None else "a module that lacks one of them"),
                                 "model.tie_weights() before fully_shard; assign the Parameter itself and not a copy")
