"""No optimizer steps on a parameter that it must not: from before fully_shard, replaced, foreign, frozen, left out or listed twice.

Flow:   tieshard.fsdp_state, any module -> [this] -> the training loop
Source: accelerate #3821 ("A parameter in the optimizer couldn't be switched to its sharded version").
"""

from __future__ import annotations

import typing
import weakref

import torch
from torch.distributed.tensor import DTensor

from tieshard.errors import Diagnostic, UsageError
from tieshard.fsdp_state import FSDPModule, is_sharded, managed_parameters, original_of
from tieshard.module_table import plain_name
from tieshard.optimizer_quick_check import all_is_well
from tieshard.optimizer_slots import Slot, SlotReport, refuse
from tieshard.optimizer_switch import is_part_of, switch_slots


class OptimizerGuard:
    """Admits the parameters that fully_shard manages (torch's, or tieshard's), and those that are registered by hand.

    Every check lists all offenders in one GuardError (a KeyError too), each with its group, the reason and the remedy. No check
    communicates; ranks that do the same get the same answer.
    """

    def __init__(self, module: torch.nn.Module | None = None):
        """module: sharded already; None for a guard of registered parameters alone. Raises UsageError not-sharded."""
        if module is not None and not is_sharded(module):
            raise UsageError(Diagnostic("not-sharded", what="fully_shard has not been applied", where=type(module).__name__,
                                        why="expected a module whose parameters fully_shard manages",
                                        fix="call tieshard.fully_shard(model, mesh) first; without sharding, OptimizerGuard() and "
                                        "register_managed(model.parameters()), or OptimizerGuard.of_unsharded(model)"))
        self.module = module
        self.managed = managed_parameters(module) if module is not None else []
        self.registered: dict[torch.Tensor, str] = {}
        self.beside: list[torch.optim.Optimizer] = []  #: others that step a part of the parameters; what they hold is not left out

    @classmethod
    def of_unsharded(cls, module: torch.nn.Module) -> OptimizerGuard:
        """The same for a module on one process: its parameters of now are admitted, and those that it gets later are told of."""
        guard = cls()
        guard.register_managed(module.named_parameters())
        guard.module = module
        return guard

    def register_managed(self, parameters: typing.Iterable) -> None:
        """Admits further parameters, or (name, parameter) pairs: of a module that is not sharded, say."""
        for each in parameters:
            name, parameter = each if isinstance(each, tuple) else (self._name_in_module(each) or f"registered {len(self.registered)}", each)
            self.registered[parameter] = name

    def assert_all_managed(self, parameters: typing.Iterable) -> None:
        """Checks parameters, or groups of them, before an optimizer takes them. Raises GuardError."""
        self._refuse_if_any(self._inspect(as_groups(parameters)), leave_out=("managed",))

    def trainable(self) -> list[torch.nn.Parameter]:
        """What an optimizer has to hold, in registration order. Raises GuardError where the module has trainable ones that are not managed."""
        self._refuse_if_any(self._unmanaged(set()))
        ours = [each.parameter for each in self.managed] + list(self.registered)
        return [parameter for parameter in dict.fromkeys(ours) if parameter.requires_grad]

    def build(self, kind: type[torch.optim.Optimizer], params: typing.Iterable | None = None, **options) -> torch.optim.Optimizer:
        """Makes an optimizer of this class and guards it. params: parameters or groups, as the class takes them; default: trainable()."""
        self.reshard()
        params = self.trainable() if params is None else list(params)
        self._refuse_if_any(self._inadmissible(as_groups(params)))
        return self._guard(kind(params, **options))

    def adopt(self, optimizer: torch.optim.Optimizer, originals: typing.Mapping[str, torch.Tensor] | None = None) -> torch.optim.Optimizer:
        """Takes an optimizer from before fully_shard or after it, and gives it back guarded. Of several over one module each gets a guard
        that has the others in `beside`.

        Whole parameters in it become this rank's parts, with their state cut and their step counts kept. No communication. originals: what
        the module's parameters were when it was built (dict(model.named_parameters())), where it has got others since.
        Raises GuardError; the optimizer is unchanged then.
        """
        self.reshard()
        switch_slots(optimizer, self._switches(optimizer, originals or {}), self._refuse_slots, self._name_of)
        return self._guard(optimizer)

    @staticmethod
    def drop_frozen(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """Takes parameters that require no gradient out of their groups, with the state kept of them; gives them."""
        dropped = [parameter for group in optimizer.param_groups for parameter in group["params"] if not parameter.requires_grad]
        for group in optimizer.param_groups:
            group["params"][:] = [parameter for parameter in group["params"] if parameter.requires_grad]
        for parameter in dropped:
            optimizer.state.pop(parameter, None)
        return dropped

    def report(self, optimizer: torch.optim.Optimizer) -> SlotReport:
        """Every slot, the good ones too, and what is in none."""
        groups = [group["params"] for group in optimizer.param_groups]
        held = {parameter for group in groups for parameter in group}
        return SlotReport([*self._inspect(groups), *self._unmanaged(held), *self._left_out(held)])

    def require_admissible(self, optimizer: torch.optim.Optimizer) -> None:
        """Each slot is managed, its gradient (if any) is the part's, each trainable parameter is in one group. Raises GuardError."""
        with torch._C.DisableTorchFunctionSubclass():  # a DTensor's .grad and .requires_grad take microseconds otherwise
            if not self.beside and all_is_well(self.module, self.managed, self.registered, optimizer):
                return
        self._refuse_if_any(self._inadmissible([group["params"] for group in optimizer.param_groups]))

    def reshard(self) -> None:
        """Every parameter becomes its part again, as after a backward. No communication."""
        for submodule in self.module.modules() if self.module is not None else ():
            if isinstance(submodule, FSDPModule):
                submodule.reshard()

    def _guard(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        before = optimizer.__dict__.pop("_tieshard_guard", None)
        if before is not None:
            before.remove()
        handle = optimizer.register_step_pre_hook(lambda stepped, args, kwargs: self.require_admissible(stepped))
        held = weakref.ref(optimizer)

        def add_param_group(group: dict) -> None:
            given = group["params"]
            group = {**group, "params": [given] if isinstance(given, torch.Tensor) else list(given)}
            self._refuse_if_any(self._inspect([*(each["params"] for each in held().param_groups), group["params"]]), ("managed",))
            type(held()).add_param_group(held(), group)

        optimizer.__dict__.update(_tieshard_guard=handle, add_param_group=add_param_group)
        return optimizer

    def _inadmissible(self, groups: list[list]) -> list[Slot]:
        held = {parameter for group in groups for parameter in group}
        bad = [each for each in self._inspect(groups) if each.kind != "managed"]
        return [*bad, *self._unmanaged(held), *self._left_out(held)]

    def _inspect(self, groups: list[list]) -> list[Slot]:
        managed = {each.parameter: each for each in self.managed}
        slots, seen = [], set()
        for number, group in enumerate(groups):
            for place, parameter in enumerate(group):
                ours = managed.get(parameter)
                name = ours.name if ours else self._name_of(parameter)
                kind, detail = self._kind(parameter, ours)
                kind = "duplicate" if parameter in seen else kind
                seen.add(parameter)
                slots.append(Slot(number, place, name, kind, tuple(parameter.shape), local_shape(parameter), detail))
        return slots

    def _kind(self, parameter: torch.Tensor, ours) -> tuple[str, str]:
        if ours is None and parameter not in self.registered:
            original = self._was(parameter)
            if original is not None:
                return "original", f"it is {original.name} now"
            if isinstance(parameter, DTensor):
                return "stale", ""
            return ("unmanaged" if self._name_in_module(parameter) else "foreign"), f"a tensor of shape {list(parameter.shape)}"
        if ours is not None and ours.replaced:
            return "stale", ""
        if not parameter.requires_grad:
            return "frozen", ""
        if ours is not None and parameter.grad is not None and not is_part_of(parameter.grad, parameter):
            return "foreign-gradient", f"its shape is {list(parameter.grad.shape)}"
        return "managed", ""

    def _unmanaged(self, held: set) -> list[Slot]:
        """Trainable parameters of the module that nothing manages and no group lists (of those that one lists, _inspect tells)."""
        if self.module is None:
            return []
        known = {id(place.module._parameters.get(place.attribute)) for each in self.managed for place in each.places}
        return [Slot(-1, -1, plain_name(name), "unmanaged", tuple(parameter.shape), local_shape(parameter))
                for name, parameter in self.module.named_parameters()
                if parameter.requires_grad and id(parameter) not in known and parameter not in self.registered and parameter not in held]

    def _left_out(self, held: set) -> list[Slot]:
        held = held | {parameter for other in self.beside for group in other.param_groups for parameter in group["params"]}
        whole = {original_of(parameter) for parameter in held}  # told of as "original"
        found = [Slot(-1, -1, each.name, "stale" if each.replaced else "left-out", tuple(each.parameter.shape), local_shape(each.parameter))
                 for each in self.managed if each.parameter.requires_grad and each.parameter not in held and each.original not in whole]
        return found + [Slot(-1, -1, name, "left-out", tuple(parameter.shape), local_shape(parameter))
                        for parameter, name in self.registered.items() if parameter.requires_grad and parameter not in held]

    def _switches(self, optimizer: torch.optim.Optimizer, originals: typing.Mapping[str, torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
        """Whole parameter -> part, for those that the optimizer holds."""
        by_name = {place_name: each for each in self.managed for place_name in self._names_of(each)}
        named = {parameter: by_name[plain_name(name)] for name, parameter in originals.items() if plain_name(name) in by_name}
        switches = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = named.get(parameter) or self._was(parameter)
                if part is not None and part.parameter is not parameter:
                    switches[parameter] = part.parameter
        return switches

    def _names_of(self, managed) -> list[str]:
        names = {submodule: plain_name(name) for name, submodule in self.module.named_modules()}
        return [f"{names[place.module]}.{place.attribute}".lstrip(".") for place in managed.places if place.module in names]

    def _name_in_module(self, parameter: torch.Tensor) -> str:
        named = self.module.named_parameters() if self.module is not None else ()
        return next((plain_name(name) for name, each in named if each is parameter), "")

    def _name_of(self, parameter: torch.Tensor) -> str:
        original = self._was(parameter)
        return (self.registered.get(parameter) or (original.name if original else self._name_in_module(parameter))
                or f"a tensor of shape {list(parameter.shape)}")

    def _was(self, parameter: torch.Tensor):
        """The managed parameter that fully_shard made of this whole one; None of any other."""
        return next((each for each in self.managed if each.original == original_of(parameter)), None)

    def _refuse_slots(self, groups: list[list], extra: list[Slot]) -> None:
        """What adopt would leave behind: `groups` are the parameters after the switch."""
        self._refuse_if_any([*extra, *self._inadmissible(groups)])

    @staticmethod
    def _refuse_if_any(slots: list[Slot], leave_out: tuple[str, ...] = ()) -> None:
        offenders = [each for each in slots if each.kind not in leave_out]
        if offenders:
            raise refuse(offenders)


def as_groups(parameters: typing.Iterable) -> list[list[torch.Tensor]]:
    """Parameters, (name, parameter) pairs, or groups of either, as torch's optimizers take them."""
    listed = list(parameters)
    if listed and isinstance(listed[0], dict):
        return [as_groups([group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"])[0] for group in listed]
    return [[each[1] if isinstance(each, tuple) else each for each in listed]]


def local_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    return tuple(parameter._local_tensor.shape if isinstance(parameter, DTensor) else parameter.shape)
