"""Puts a training checkpoint's state back into a module and its optimizer, on any number of ranks, in place.

Flow:   tieshard._core (find_checkpoint, SavedState) -> [this] -> torch.nn.Module, torch.optim.Optimizer
Source: docs/checkpoints.md; runtime/state/load_checkpoint.h, which does the same for a module of LibTorch's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import time
import typing

import torch

from tieshard import _core
from tieshard.buffers import other_buffers, recompute
from tieshard.errors import Diagnostic, InputError
from tieshard.generator_state import set_generator_state
from tieshard.held_tensors import TORCH_TYPES, dtype_name, held_tensors, own_module, persistent_buffers, unsaved_state
from tieshard.local_parts import boxes, local_tensor
from tieshard.module_table import plain_name
from tieshard.optimizer_state import groups_of, optimizer_name, require_takes, restore
from tieshard.parameter_memory import device_of, give_memory
from tieshard.ranks import agree, gather, on_first, rank_count, this_rank

SHOWN = 8  # differences that an error lists
EXPERT = re.compile(r"(^|\.)experts\.\d+\.")


@dataclasses.dataclass
class Resumed:
    """Where the run stands. The same on every rank, but for the findings, which rank 0 has more of."""

    directory: pathlib.Path  #: of the checkpoint that was taken
    step: int
    samples: int
    tokens: int
    flags: dict[str, str]  #: as save() got them; of the C++ trainer its flags
    generators_restored: bool  #: False where another number of ranks saved
    findings: list[_core.Diagnostic]  #: newer checkpoints that were passed over, state that nothing takes or that was not saved
    seconds: float

    @property
    def warnings(self) -> list[_core.Diagnostic]:
        """The findings that are warnings."""
        return [finding for finding in self.findings if finding.level == "warning"]


def resume(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, directory: str | os.PathLike, *, verify: bool = False,
           generators: bool = True) -> Resumed:
    """Goes on from the newest complete checkpoint of the run in `directory`, or from the one that it is. A collective.

    Values go into the parameters where they are, which stay the same objects (those on the meta device get memory); the
    optimizer's state of each is replaced. Any number of ranks and any placement will do, whatever saved. verify: reads every
    file first and compares hashes. generators: sets this rank's random generator, where as many ranks saved.

    Raises InputError (no-checkpoint, checkpoint-incomplete, checkpoint-mismatch: another model, dtype or optimizer; saves-mixed),
    UsageError optimizer-parameter, PeerError (io-failed, peer-failed).
    """
    started = time.perf_counter()
    given = pathlib.Path(directory)
    module = own_module(module)
    findings: list[_core.Diagnostic] = []

    def find():
        found, passed_over = _core.find_checkpoint(given, verify)
        findings.extend(passed_over)
        return os.path.relpath(found, given)

    name = on_first("resume: find", find)
    place = given if name == "." else given / name
    with torch.no_grad():
        saved, manifest, trainer = agree_here("resume: open", lambda: open_same(module, optimizer, place))
        require_one_save(gather(manifest["id"]), place)
        agree("resume: read", lambda: findings.extend(read_all(module, optimizer, saved, manifest, place)))
    findings += unsaved_state(module, place)
    same_ranks = len(trainer["generators"]) == rank_count()
    if generators and same_ranks:
        agree("resume: generators", lambda: set_generator_state(module, trainer["generators"][this_rank()]))
    return Resumed(place, trainer["step"], trainer["samples"], trainer["tokens"], trainer["flags"], generators and same_ranks, findings,
                   time.perf_counter() - started)


def agree_here(stage: str, work: typing.Callable[[], tuple]) -> tuple:
    """As agree(), for a result that stays on its rank."""
    kept = []
    agree(stage, lambda: kept.append(work()))
    return kept[0]


def open_same(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, directory: pathlib.Path) -> tuple:
    """The opened state, its manifest and trainer.json. Raises InputError checkpoint-mismatch where they are of another run."""
    saved = _core.SavedState(directory)
    manifest, trainer = json.loads(saved.manifest), json.loads(saved.trainer)
    tensors = held_tensors(module)
    records = {record["fqn"]: record for record in manifest["parameters"]}
    ties = {tie["alias"]: tie["canonical"] for tie in manifest["ties"]}
    wrong = [difference for name, tensor in tensors.items() if (difference := compare(name, tensor, records.get(name), ties))]
    wrong += [f"{name}: is in the checkpoint, and no parameter here" for name in records if name not in tensors]
    if optimizer is not None and manifest["optimizer"] != optimizer_name(optimizer):
        wrong.append(f"expected state of the optimizer {optimizer_name(optimizer)}, got {manifest['optimizer'] or 'none'}")
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InputError(Diagnostic("checkpoint-mismatch", what="a training checkpoint is of another model or run", where=str(directory),
                                    why="; ".join(wrong[:SHOWN]) + more, fix=remedy(records, tensors)))
    for name, group in groups_of(optimizer, tensors).items():
        if records[name]["optimizer"]:
            require_takes(optimizer, group, name, records[name]["optimizer"])
    return saved, manifest, trainer


def remedy(records: dict[str, dict], tensors: dict[str, torch.Tensor]) -> str:
    """What to do about a checkpoint of another model: of one whose experts are apart, as the C++ trainer's, that no resume joins them."""
    each_apart = any(EXPERT.search(name) for name in records.keys() - tensors.keys())
    if each_apart and any(".experts." in f".{name}" and not EXPERT.search(name) for name in tensors.keys() - records.keys()):
        return ("its experts were saved one by one, as the C++ trainer does, and are one parameter of a layer here, which resume does not "
                "convert: go on with the trainer, or load what `tieshard export` makes of the checkpoint and start the optimizer anew")
    return "give the model and the optimizer of the run that saved it"


def require_one_save(identities: list[str], directory: pathlib.Path) -> None:
    """Raises InputError saves-mixed, on all ranks, where the same name is another checkpoint for some of them."""
    other = next((rank for rank, identity in enumerate(identities) if identity != identities[0]), None)
    if other is not None:
        raise InputError(Diagnostic("saves-mixed", what="ranks would resume from different saves", where=f"rank {this_rank()}, {directory}",
                                    why=f"expected one save on all ranks, got {identities[0]} on rank 0 and "
                                    f"{identities[other]} on rank {other}",
                                    fix="name one directory that all ranks see: not a disk of each node's own"))


def compare(name: str, tensor: torch.Tensor, record: dict | None, ties: dict[str, str]) -> str:
    """What keeps a saved parameter from being this one; empty: nothing."""
    if record is None:
        return f"{name}: a weight of its own here, tied to {ties[name]} there" if name in ties else f"{name}: is not in the checkpoint"
    if record["shape"] != list(tensor.shape):
        return f"{name}: expected shape {list(tensor.shape)}, got {record['shape']}"
    if record["stored"] and record["dtype"] != dtype_name(name, tensor):
        return f"{name}: expected {dtype_name(name, tensor)}, got {record['dtype']}"
    if not record["stored"] and tensor.requires_grad:
        return f"{name}: is trained here, and was the base's there: its values were not saved"
    return ""


def read_all(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, saved: _core.SavedState, manifest: dict,
             directory: pathlib.Path) -> list[_core.Diagnostic]:
    """Fills parameters, buffers and the optimizer's state; gives a warning where nothing takes some of that."""
    leave_meta(module)
    tensors = held_tensors(module)
    groups = groups_of(optimizer, tensors)
    without = []
    for record in manifest["parameters"]:
        name = record["fqn"]
        tensor = tensors[name]
        if record["stored"]:
            read_into(saved, name, tensor)
        if name in groups:
            optimizer.state.pop(tensor, None)
        if record["optimizer"] and name in groups:
            moments = {moment: read_new(saved, f"{name}.{moment}", tensor) for moment in record["optimizer"]["moments"]}
            restore(optimizer, groups[name], tensor, moments, record["optimizer"]["counters"])
        elif record["optimizer"]:
            without.append(name)
    if optimizer is None or not without:
        return []
    return [Diagnostic("checkpoint-mismatch", level="warning", what="optimizer state of a checkpoint is left out", where=str(directory),
                       why=f"the optimizer does not hold {', '.join(without)}",
                       fix="nothing, if they were frozen on purpose; their moments are not saved again")]


def leave_meta(module: torch.nn.Module) -> None:
    """Gives memory to what has none; buffers that no checkpoint holds are made anew then."""
    on_meta = [each for each in module.parameters() if local_tensor(each).is_meta]
    if not on_meta:
        return
    device = device_of(on_meta[0], None)
    for parameter in on_meta:
        give_memory(parameter, device_of(parameter, None))
    persistent = persistent_buffers(module)
    memory = {buffer: torch.empty_like(buffer, device=device) for _, buffer in persistent if buffer.is_meta}  # by identity
    stored = {plain_name(name): None for name, _ in persistent}
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and buffer in memory:  # each name of a buffer that has several
                submodule._buffers[name] = memory[buffer]
                stored[plain_name(f"{prefix}.{name}" if prefix else name)] = None
    recompute(module, other_buffers(module, stored), device)


def read_into(saved: _core.SavedState, name: str, tensor: torch.Tensor) -> None:
    """This rank's part of a parameter, where it is."""
    local = local_tensor(tensor)
    held = boxes(tensor, name)
    if len(held) == 1 and local.device.type == "cpu" and local.is_contiguous():
        saved.read([(name, local.data_ptr(), held[0].offset, held[0].size)])
    else:
        local.copy_(read_new(saved, name, tensor))


def read_new(saved: _core.SavedState, name: str, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is placed as `like`, in its stored dtype, on the device of `like`."""
    local = local_tensor(like)
    dtype = TORCH_TYPES[saved.dtype_of(name)]
    whole = torch.empty(local.shape, dtype=dtype)
    held = boxes(like, name)
    parts = [whole if len(held) == 1 else torch.empty(box.size, dtype=dtype) for box in held]
    saved.read([(name, part.data_ptr(), box.offset, box.size) for part, box in zip(parts, held)])
    if len(held) > 1:
        for part, box in zip(parts, held):
            whole[tuple(slice(begin, begin + size) for begin, size in zip(box.place, box.size))] = part
    return whole.to(local.device)
