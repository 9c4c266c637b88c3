"""torch's fully_shard over a whole model: units derived, ties kept, tied weights cut on the hidden dimension.

Flow:   torch.nn.Module -> tieshard.units -> [this] -> tieshard.optimizer_guard
Source: torch.distributed.fsdp.fully_shard (2.13), which cuts on dimension 0 unless shard_placement_fn says otherwise.
"""

from __future__ import annotations

import typing
import warnings
import weakref

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor, Shard

from tieshard import _core
from tieshard.errors import Diagnostic, UsageError
from tieshard.fsdp_state import is_sharded, managed_parameters
from tieshard.module_table import plain_name
from tieshard.module_ties import tie_before_sharding
from tieshard.sharding_report import Sharding, ShardedName
from tieshard.units import Unit, derive_units

SHARDINGS: weakref.WeakKeyDictionary[torch.nn.Module, Sharding] = weakref.WeakKeyDictionary()


def fully_shard(module: torch.nn.Module, mesh: DeviceMesh | None = None, *, units: typing.Iterable | None = None,
                tie: dict[str, str] | None = None, reshard_after_forward: bool | int | None = None,
                shard_placement_fn: typing.Callable | None = None, mp_policy: MixedPrecisionPolicy | None = None,
                offload_policy: OffloadPolicy | None = None, ignored_params: set[torch.nn.Parameter] | None = None) -> FSDPModule:
    """Shards `module` over `mesh` with torch's fully_shard, in place, and gives it back.

    Every rank calls it, with the same module. mesh: of one dimension, or of two named ones (HSDP: replicate, shard); default: all ranks.
    units: names, classes or objects of modules that are gathered one by one; default: the model's blocks. Units that share a parameter
    become one. tie: alias -> canonical, for names that should be one tensor beside what a transformers model says itself.
    The rest goes to torch's fully_shard. A tied parameter is cut on its last dimension, and on dimension 0, with a warning, where that
    does not divide by the ranks, which torch refuses.

    Raises SharedObjectError (tie-not-shared) where names that should be one tensor are two; UsageError (already-sharded, unknown-unit,
    bad-shard-dim, tied-weight-on-vocab).
    """
    if is_sharded(module):
        raise UsageError(Diagnostic("already-sharded", what="fully_shard has been applied before", where=type(module).__name__,
                                    why="expected a module without sharded parts, got one that has them",
                                    fix="call it once, on the whole model; units says what is gathered one by one"))
    mesh = mesh or init_device_mesh(torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu",
                                    (torch.distributed.get_world_size(),))
    mended = tie_before_sharding(module, tie or {})
    ties = _core.TieRegistry.of(module)
    derived = derive_units(module, units)
    placement = Placements(module, ties, mesh.size(mesh.ndim - 1), shard_placement_fn, ignored_params or set())
    options = {"mesh": mesh, "shard_placement_fn": placement, "reshard_after_forward": reshard_after_forward,
               "mp_policy": mp_policy or MixedPrecisionPolicy(), "offload_policy": offload_policy or OffloadPolicy(),
               "ignored_params": ignored_params}
    for unit in derived:
        torch_fully_shard(unit.modules if len(unit.modules) > 1 else unit.modules[0], **options)
    for finding in placement.by_rows.values():
        warnings.warn(str(finding), stacklevel=2)
    SHARDINGS[module] = account_of(module, derived, ties, list(placement.by_rows.values()), mended)
    return module


def sharding_of(module: torch.nn.Module) -> Sharding:
    """How tieshard.fully_shard has sharded `module`: unit, names, dimension and local shape of each parameter.

    Raises UsageError not-sharded.
    """
    if module not in SHARDINGS:
        raise UsageError(Diagnostic("not-sharded", what="fully_shard has not been applied", where=type(module).__name__,
                                    why="expected a module that tieshard.fully_shard was called with", fix="call tieshard.fully_shard(module)"))
    return SHARDINGS[module]


class Placements:
    """shard_placement_fn for torch: the last dimension for tied parameters, the caller's or torch's own choice for all others."""

    def __init__(self, module: torch.nn.Module, ties: _core.TieRegistry, ranks: int, asked: typing.Callable | None, ignored: set):
        self.ranks, self.asked = ranks, asked
        self.names = {id(parameter): plain_name(name) for name, parameter in module.named_parameters()}
        self.tied = {group.canonical: group.names for group in ties}
        self.by_rows: dict[str, _core.Diagnostic] = {}  #: tied weights that are cut on dimension 0, and why
        for name, parameter in module.named_parameters():
            if parameter not in ignored and parameter.dim() == 0:
                raise UsageError(Diagnostic("bad-shard-dim", what="a parameter has no dimension to shard", where=plain_name(name),
                                            why="expected a shape of one or more sizes, got a scalar, which torch's fully_shard refuses",
                                            fix="make it a tensor of shape [1], or give it in ignored_params"))
            if parameter not in ignored:
                self(parameter)  # what is refused is refused before anything is sharded

    def __call__(self, parameter: torch.nn.Parameter):
        asked = self.asked(parameter) if self.asked else None
        name = self.names.get(id(parameter), "")
        if name not in self.tied or parameter.dim() < 2:
            return asked
        last = parameter.dim() - 1
        if asked is not None and getattr(asked, "dim", last) not in (last, -1):
            raise UsageError(Diagnostic("tied-weight-on-vocab", what="a tied weight is asked onto another dimension than its last",
                                        where=" = ".join(self.tied[name]), why=f"expected None or Shard({last}), got {asked}",
                                        fix="let shard_placement_fn give None for tied parameters"))
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if local.shape[last] % self.ranks == 0:
            return asked or Shard(last)
        self.by_rows[name] = _core.Diagnostic(
            "tied-weight-on-vocab", level="warning", what="a tied weight is sharded on another dimension than its last",
            where=" = ".join(self.tied[name]), why=f"expected {local.shape[last]} columns to divide by {self.ranks} ranks, which torch's "
            "fully_shard asks for; it is cut into rows, and each rank has the rows of some tokens",
            fix="take a number of ranks that divides the hidden size; values and updates are the same either way")
        return None


def account_of(module: torch.nn.Module, units: list[Unit], ties: _core.TieRegistry, findings: list, mended: list[str]) -> Sharding:
    tied = {group.canonical: [alias.name for alias in group.aliases] for group in ties}
    rows = []
    for each in managed_parameters(module):
        rows.append(ShardedName(name=each.name, aliases=tied.get(each.name, []), unit=" + ".join(each.unit), shape=tuple(each.parameter.shape),
                                local_shape=tuple(each.inner.sharded_size), dtype=str(each.parameter.dtype), dim=each.dim))
    joined = {" + ".join(unit.names): unit.shared for unit in units if unit.shared}
    return Sharding(parameters=rows, joined=joined, findings=findings, tied_again=mended)
