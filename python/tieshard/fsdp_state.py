"""What torch's FSDP2 knows of a module: the parameters it manages, and the objects that stand for them.

Flow:   torch.nn.Module after fully_shard -> [this] -> tieshard.sharding, tieshard.optimizer_guard, tieshard.module_ties
Source: torch.distributed.fsdp._fully_shard of torch 2.13. These are private names, so they are looked at when this is imported.
"""

from __future__ import annotations

import typing

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tieshard.errors import Diagnostic, UsageError
from tieshard.module_table import plain_name

try:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    MISSING = [name for kind, names in ((FSDPParam, ("reset_sharded_param", "_setattr_on_modules")), (ShardedState, ("SHARDED",)),
                                        (FSDPState, ("_lazy_init",)), (FSDPModule, ("_get_fsdp_state", "reshard")))
               for name in names if not hasattr(kind, name)]
except ImportError as error:
    MISSING = [str(error)]
if MISSING:
    raise UsageError(Diagnostic("wrong-state", what="this torch's FSDP2 is not the one that tieshard knows", where=f"torch {torch.__version__}",
                                why=f"expected what torch 2.13 has; missing: {', '.join(MISSING)}", fix="pip install torch==2.13.0"))


class Place(typing.NamedTuple):
    """One name of a parameter: the submodule that has it, and its name there."""

    module: torch.nn.Module
    attribute: str


class ManagedParameter:
    """A parameter that fully_shard manages: one object while it is sharded, under all its names."""

    def __init__(self, inner: FSDPParam, name: str, unit: tuple[str, ...]):
        self.inner = inner
        self.name = name  #: the first in registration order
        self.unit = unit  #: names of the modules that it is gathered with

    @property
    def places(self) -> list[Place]:
        info = self.inner._module_info
        return [Place(info.module, info.param_name), *map(Place, info.shared_modules, info.shared_param_names)]

    @property
    def parameter(self) -> torch.nn.Parameter:
        """The object that an optimizer has to hold.

        While nothing is gathered it is the one that the module has: before its first forward torch takes over what to_empty,
        .to() or a load has put there.
        """
        registered = self.registered
        sharded = self.inner.sharded_state == ShardedState.SHARDED
        return registered if sharded and isinstance(registered, DTensor) else self.inner.sharded_param

    @property
    def registered(self) -> torch.Tensor | None:
        """What the module has under the name now: a plain tensor while it is gathered."""
        module, attribute = self.places[0]
        return module._parameters.get(attribute)

    @property
    def replaced(self) -> bool:
        """Whether the module got another tensor under the name, or lost it, since fully_shard."""
        return self.inner.sharded_state == ShardedState.SHARDED and not isinstance(self.registered, DTensor)

    @property
    def dim(self) -> int:
        return self.inner.fsdp_placement.dim

    @property
    def original(self) -> int:
        """original_of the whole parameter that fully_shard took."""
        return self.inner._orig_param_uid


def original_of(parameter: torch.Tensor) -> int | None:
    """What torch marks a whole parameter with when fully_shard takes it; None of any other."""
    return getattr(parameter, "_fsdp_orig_uid", None)


def names_of_modules(module: torch.nn.Module) -> dict[torch.nn.Module, str]:
    return {submodule: plain_name(name) for name, submodule in module.named_modules()}


def is_sharded(module: torch.nn.Module) -> bool:
    return any(isinstance(submodule, FSDPModule) for submodule in module.modules())


def managed_parameters(module: torch.nn.Module) -> list[ManagedParameter]:
    """Every parameter of `module` that some fully_shard manages, each once, in registration order."""
    names = names_of_modules(module)
    states = {id(state): state for state in (each._get_fsdp_state() for each in names if isinstance(each, FSDPModule))}
    found = {}
    for state in states.values():
        for group in state._fsdp_param_groups:
            unit = tuple(names[each] for each in group.modules if each in names)
            for inner in group.fsdp_params:
                found[inner._module_info.module, inner._module_info.param_name] = inner, unit
                for shared in zip(inner._module_info.shared_modules, inner._module_info.shared_param_names):
                    found.setdefault(shared, (inner, unit))
    managed = {}
    for submodule, prefix in names.items():
        for attribute in submodule._parameters:
            inner, unit = found.get((submodule, attribute), (None, ()))
            if inner is not None and id(inner) not in managed:
                managed[id(inner)] = ManagedParameter(inner, f"{prefix}.{attribute}" if prefix else attribute, unit)
    return list(managed.values())


def sharded_as_one(places: list[tuple[torch.nn.Module, str]], module: torch.nn.Module) -> bool:
    """Whether fully_shard took these names for one parameter, whatever objects they yield since."""
    for each in managed_parameters(module):
        if all(Place(*place) in each.places for place in places):
            return True
    return False
