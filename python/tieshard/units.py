"""Which modules are gathered together: the blocks of a model, joined where they share a parameter.

Flow:   torch.nn.Module -> [this] -> tieshard.sharding
Source: transformers' _no_split_modules; torch's fully_shard refuses a parameter that two of its groups would own, or copies it.
"""

from __future__ import annotations

import typing

import torch

from tieshard.errors import Diagnostic, UsageError
from tieshard.fsdp_state import names_of_modules


class Unit(typing.NamedTuple):
    """Modules of one fully_shard call. Why several: the parameters that they share."""

    modules: list[torch.nn.Module]
    names: list[str]
    shared: list[str]


def block_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Of a transformers model the modules that may not be split; of any other the members of its outermost lists."""
    no_split = set(getattr(module, "_no_split_modules", None) or ())
    blocks = [each for each in module.modules() if type(each).__name__ in no_split and each is not module]
    return blocks or members_of_lists(module)


def members_of_lists(module: torch.nn.Module) -> list[torch.nn.Module]:
    found = []
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            found += child
        else:
            found += members_of_lists(child)
    return found


def asked_modules(module: torch.nn.Module, units: typing.Iterable) -> list[torch.nn.Module]:
    """The modules that a caller names, by name, class or object."""
    names = names_of_modules(module)
    by_name = {name: submodule for submodule, name in names.items()}
    found = []
    for unit in units:
        if isinstance(unit, type):
            chosen = [each for each in names if isinstance(each, unit)]
        elif isinstance(unit, torch.nn.Module):
            chosen = [unit] if unit in names else []
        else:
            chosen = [by_name[unit]] if unit in by_name else []
        if not chosen:
            raise UsageError(Diagnostic("unknown-unit", what="a unit is asked for that the module does not have", where=str(unit),
                                        why=f"expected a name, class or object of named_modules() of {type(module).__name__}",
                                        fix="see [name for name, _ in model.named_modules()], or leave units away"))
        found += chosen
    return list(dict.fromkeys(found))


def owner_of_each(module: torch.nn.Module, units: set[torch.nn.Module]) -> dict[torch.nn.Parameter, dict[torch.nn.Module, str]]:
    """For each parameter the units that hold it, each with a name of it there. A unit within a unit holds its own."""
    owners: dict[torch.nn.Parameter, dict[torch.nn.Module, str]] = {}
    seen = set()

    def walk(submodule: torch.nn.Module, prefix: str, unit: torch.nn.Module) -> None:
        if submodule in seen:
            return
        seen.add(submodule)
        unit = submodule if submodule in units else unit
        for name, parameter in submodule._parameters.items():
            if parameter is not None:
                owners.setdefault(parameter, {}).setdefault(unit, prefix + name)
        for name, child in submodule._modules.items():
            if child is not None:
                walk(child, f"{prefix}{name}.", unit)

    walk(module, "", module)
    return owners


def nested(modules: list[torch.nn.Module]) -> bool:
    return any(inner is not outer and inner in set(outer.modules()) for outer in modules for inner in modules)


def derive_units(module: torch.nn.Module, units: typing.Iterable | None = None) -> list[Unit]:
    """The calls of fully_shard in their order, the module itself last.

    Where units share a parameter they become one. Where one of them holds the other (the root holds all), the inner one is left to
    it: torch cannot take a single parameter out of a unit.
    """
    chosen = block_modules(module) if units is None else asked_modules(module, units)
    left = {each for each in chosen if each is not module and type(each).forward is not torch.nn.Module.forward}
    while True:
        sharing = [owners for owners in owner_of_each(module, left).values() if len(owners) > 1]
        inner = {each for owners in sharing if module in owners or nested(list(owners)) for each in owners if each is not module}
        if not inner & left:
            break
        left -= inner
    return joined(module, [each for each in module.modules() if each in left], sharing)


def joined(module: torch.nn.Module, blocks: list[torch.nn.Module], sharing: list[dict]) -> list[Unit]:
    names = names_of_modules(module)
    group_of = {block: [block] for block in blocks}
    shared: dict[int, list[str]] = {}
    for owners in sharing:
        groups = list({id(group_of[each]): group_of[each] for each in owners}.values())
        together = [block for block in blocks if any(block in group for group in groups)]
        texts = [text for group in groups for text in shared.pop(id(group), [])]
        shared[id(together)] = [*texts, " = ".join(owners.values())]
        group_of.update({block: together for block in together})
    groups = list({id(group): group for group in group_of.values()}.values())
    groups.sort(key=lambda group: -max(names[block].count(".") for block in group))  # inner ones first; stable
    return [*(Unit(group, [names[block] for block in group], shared.get(id(group), [])) for group in groups), Unit([module], [""], [])]
