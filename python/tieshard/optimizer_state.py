"""What an optimizer of torch keeps for each parameter, as a training checkpoint has it: tensors of the parameter's shape, and counts.

Flow:   torch.optim.Optimizer -> [this] -> tieshard.save, tieshard.resume
Source: torch.optim's state; docs/checkpoints.md, manifest.json.
"""

from __future__ import annotations

import dataclasses
import typing

import torch
from torch.distributed.tensor import DTensor

from tieshard.errors import Diagnostic, InputError, UsageError
from tieshard.held_tensors import like

KNOWN = {"adam": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}, "adamw": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"},
         "sgd": {"momentum_buffer"}, "rmsprop": {"square_avg", "momentum_buffer", "grad_avg", "step"}, "adagrad": {"sum", "step"}}
ON_REQUEST = {"adam": {"amsgrad": "max_exp_avg_sq"}, "adamw": {"amsgrad": "max_exp_avg_sq"}, "sgd": {"momentum": "momentum_buffer"},
              "rmsprop": {"momentum": "momentum_buffer", "centered": "grad_avg"}, "adagrad": {}}  # by option, what it makes them keep


@dataclasses.dataclass
class Kept:
    """Of one parameter."""

    moments: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  #: shaped and placed as the parameter
    counters: dict[str, int] = dataclasses.field(default_factory=dict)


def refuse(where: str, why: str, fix: str) -> typing.NoReturn:
    raise UsageError(Diagnostic("optimizer-parameter", what="an optimizer's state cannot be saved or restored", where=where, why=why,
                                fix=fix))


def optimizer_name(optimizer: torch.optim.Optimizer | None) -> str:
    """As the manifest names it: "adamw". Of a class derived from one of torch's, that one's name."""
    if optimizer is None:
        return ""
    names = [kind.__name__.lower() for kind in type(optimizer).__mro__ if issubclass(kind, torch.optim.Optimizer)]
    return next((name for name in names if name in KNOWN and names[0] not in KNOWN), names[0])


def groups_of(optimizer: torch.optim.Optimizer | None, tensors: dict[str, torch.Tensor]) -> dict[str, dict]:
    """By parameter name, the group that steps it. Raises UsageError optimizer-parameter for one that the module does not have."""
    if optimizer is None:
        return {}
    names = {id(tensor): name for name, tensor in tensors.items()}
    found, strangers = {}, 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names:
                found[names[id(parameter)]] = group
            else:
                strangers += 1
    if strangers:
        refuse(type(optimizer).__name__, f"expected parameters of the module, got {strangers} that are none of it",
               "build the optimizer after fully_shard from module.parameters(), or pass the module that it steps")
    return found


def kept_for(optimizer: torch.optim.Optimizer, name: str, parameter: torch.Tensor) -> Kept | None:
    """The state of one parameter; None where there is none yet. Raises UsageError optimizer-parameter for what the format cannot say."""
    state = optimizer.state.get(parameter)
    if not state:
        return None
    kept = Kept()
    for key, value in state.items():
        if value is None:
            continue
        if key == "step":
            kept.counters[key] = count_of(name, key, value)
        elif isinstance(value, torch.Tensor) and value.shape == parameter.shape and same_placement(value, parameter):
            kept.moments[key] = value
        elif isinstance(value, int):
            kept.counters[key] = count_of(name, key, value)
        else:
            got = f"{type(value).__name__} of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            refuse(f"{name}, {key}", f"expected a tensor of shape {list(parameter.shape)}, placed as the parameter, or a count; got {got}",
                   "save such an optimizer with torch.distributed.checkpoint")
    return kept


def same_placement(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    if isinstance(value, DTensor) != isinstance(parameter, DTensor):
        return False
    return not isinstance(value, DTensor) or (value.device_mesh == parameter.device_mesh and value.placements == parameter.placements)


def count_of(name: str, key: str, value) -> int:
    number = float(value.to_local() if isinstance(value, DTensor) else value)
    if number < 0 or number != int(number):
        refuse(f"{name}, {key}", f"expected a count, got {number}", "save such an optimizer with torch.distributed.checkpoint")
    return int(number)


def kept_with(optimizer: torch.optim.Optimizer, group: dict) -> tuple[set[str], set[str]] | None:
    """(needed, taken): what the optimizer keeps with this group's options, and with any. None of a class that is not known."""
    name = optimizer_name(optimizer)
    if name not in KNOWN:
        return None
    off = {key for option, key in ON_REQUEST[name].items() if not group.get(option)}
    return KNOWN[name] - off - {"step"}, KNOWN[name] - off


def require_takes(optimizer: torch.optim.Optimizer, group: dict, name: str, record: dict) -> None:
    """Raises InputError checkpoint-mismatch where the optimizer would not use what was saved, or would miss something."""
    kept = kept_with(optimizer, group)
    if kept is None:
        return
    saved = {*record["moments"], *(counter for counter, count in record["counters"].items() if count)}
    needed, taken = kept
    wrong = [f"it needs {key}{option_of(optimizer, key, 'is on')}, which was not saved" for key in sorted(needed - saved)]
    wrong += [f"it would not use {key}{option_of(optimizer, key, 'is off')}, which was saved" for key in sorted(saved - taken)]
    if wrong:
        raise InputError(Diagnostic("checkpoint-mismatch", what="the optimizer has other options than the one that was saved",
                                    where=f"{type(optimizer).__name__}, {name}", why="; ".join(wrong),
                                    fix="build it with the options of the run that saved it, or resume with optimizer=None and start its "
                                    "state anew"))


def option_of(optimizer: torch.optim.Optimizer, key: str, what: str) -> str:
    """The option that a key depends on, as an aside."""
    option = next((option for option, named in ON_REQUEST[optimizer_name(optimizer)].items() if named == key), None)
    return f" ({option} {what})" if option else ""


def restore(optimizer: torch.optim.Optimizer, group: dict, parameter: torch.Tensor, moments: dict[str, torch.Tensor],
            counters: dict[str, int]) -> None:
    """Puts moments (this rank's parts) and counters in the place of what the optimizer keeps for `parameter`."""
    known = KNOWN.get(optimizer_name(optimizer), counters)
    step_device = parameter.device if group.get("capturable") or group.get("fused") else torch.device("cpu")
    state = {key: torch.tensor(float(count), dtype=torch.float32, device=step_device) if key == "step" else count
             for key, count in counters.items() if key in known}  # others, of the C++ optimizers, have not counted
    state |= {key: like(parameter, local) for key, local in moments.items()}
    optimizer.state[parameter] = state
