"""Ties that a module should have and has lost: put back, or refused where that would break what holds the parameters.

Flow:   torch.nn.Module, tieshard._core.TieRegistry -> [this] -> tieshard.load
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from tieshard._core import TieRegistry
from tieshard.errors import Diagnostic, SharedObjectError
from tieshard.module_table import plain_name


def declared_ties(module: torch.nn.Module) -> list[tuple[str, str]]:
    """(alias, canonical) of the ties that a transformers model of this config says it has; none for other modules."""
    declared = getattr(module, "all_tied_weights_keys", None)
    return list(declared.items()) if isinstance(declared, dict) else []


def holders(module: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, str]]:
    """By full parameter name: the submodule that has it, and its name there."""
    found = {}
    for prefix, submodule in module.named_modules(remove_duplicate=False):
        for name in submodule._parameters:
            found.setdefault(plain_name(f"{prefix}.{name}" if prefix else name), (submodule, name))
    return found


def mend(module: torch.nn.Module, ties: TieRegistry) -> list[str]:
    """Makes every name of a tie yield the canonical name's tensor; gives the aliases that did not.

    Raises SharedObjectError tie-not-shared where one of them is sharded: what sharded it would go on with the other tensor.
    """
    where, mended = holders(module), []
    for group in ties:
        owner, attribute = where[group.canonical]
        parameter = owner._parameters[attribute]
        for alias in group.aliases:
            other, name = where[alias.name]
            if other._parameters[name] is parameter:
                continue
            if isinstance(parameter, DTensor) or isinstance(other._parameters[name], DTensor):
                raise SharedObjectError(Diagnostic(
                    "tie-not-shared", what="names that should be one tensor are two", where=f"{group.canonical} and {alias.name}",
                    why=f"they are tied ({'; '.join(alias.evidence)}), but the module was sharded with two tensors under these names",
                    fix="tie them before fully_shard (model.tie_weights(), after to_empty too), or pass untie=[name] for two weights"))
            other._parameters[name] = parameter
            mended.append(alias.name)
    return mended
