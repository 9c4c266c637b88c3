"""Saves a module and its optimizer as a training checkpoint, complete or absent: each rank its own part, each storage once.

Flow:   torch.nn.Module, torch.optim.Optimizer -> [this] -> tieshard._core (shard files, manifest, store)
Source: docs/checkpoints.md has the format, which the C++ trainer writes and reads too; runtime/state/checkpoint_writer.h.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
import os
import pathlib
import secrets
import time
import typing

import torch

from tieshard import _core
from tieshard.errors import Diagnostic, UsageError, bad_argument
from tieshard.generator_state import generator_state
from tieshard.held_tensors import aliases_of, dtype_name, held_tensors, on_host, own_module, require_memory, unsaved_state
from tieshard.model_files import config_texts
from tieshard.optimizer_state import groups_of, kept_for, optimizer_name
from tieshard.ranks import agree, on_first, this_rank
from tieshard.saved_parts import mesh_axes, saved_part

NO_ID = "0" * 32  # of as many digits as a real one, for sizes


@dataclasses.dataclass
class SaveReport:
    """What became of a save; the same on every rank."""

    directory: pathlib.Path  #: of the checkpoint
    step: int
    nbytes: int  #: of the shard files
    seconds: float
    set_aside: list[pathlib.Path]  #: later checkpoints, of a line that the run has left
    findings: list[_core.Diagnostic]  #: state of modules that is not in the checkpoint


@dataclasses.dataclass
class State:
    """What this rank has to write, and what the manifest says of it; the records are equal on every rank."""

    records: list[dict]
    model: list[tuple]  #: rows as _core.write_shard_file takes them
    optimizer: list[tuple]
    memory: list[torch.Tensor]  #: what the rows point into

    @property
    def files(self) -> list[list[tuple]]:
        """Rows of each file of a rank."""
        any_moments = any(record["optimizer"] and record["optimizer"]["moments"] for record in self.records)
        return [self.model, self.optimizer] if any_moments else [self.model]

    @property
    def nbytes(self) -> int:
        return sum(_core.shard_file_bytes(rows, NO_ID) for rows in self.files if rows)


def save(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, directory: str | os.PathLike, *, step: int, samples: int = 0,
         tokens: int = 0, flags: dict[str, str] | None = None, keep: int = 3, source: str | os.PathLike | None = None) -> SaveReport:
    """Saves the state after `step` optimizer steps as directory/checkpoints/step-NNNNNNNNN. A collective: every rank calls it.

    module: plain or sharded by FSDP2 (HSDP too); `optimizer` steps its parameters, or is None. samples, tokens: that all ranks together
    have taken from the data. flags: texts of the caller's, which resume() gives back: a scheduler's state as JSON, for example.
    keep: newest checkpoints that stay; 0: all. source: the model directory whose tokenizer and similar files are copied; config.json is
    the model's own, where it is one of transformers.

    Raises UsageError (bad-shard-dim: placements that the format cannot say; optimizer-parameter; still-on-meta; wrong-state),
    InputError (bad-flag, directory-in-use), PeerError (disk-full, io-failed, peer-failed). The checkpoints before it are as they were then.
    """
    started = time.perf_counter()
    checkpoints = pathlib.Path(directory) / "checkpoints"
    module = own_module(module)
    state = State([], [], [], [])

    def look():
        nonlocal state, step, samples, tokens, keep
        step, samples, tokens, keep = (count_of(name, value) for name, value in
                                       (("step", step), ("samples", samples), ("tokens", tokens), ("keep", keep)))
        require_texts(flags)
        state = describe(module, optimizer, step)
        digest = hashlib.sha256(json.dumps([step, state.records]).encode()).hexdigest()
        return digest, state.nbytes, generator_state(module), secrets.token_hex(16)

    told = agree("save: what is saved", look)
    require_equal([digest for digest, *_ in told])
    ties = [{"canonical": canonical, "alias": alias, "evidence": "module-identity"} for canonical, alias in aliases_of(module)]
    manifest = {"version": 1, "id": told[0][3], "step": step, "mesh": mesh_axes(held_tensors(module)),
                "optimizer": optimizer_name(optimizer), "parameters": state.records, "ties": ties, "files": []}
    trainer = {"version": 1, "step": step, "samples": samples, "tokens": tokens, "flags": dict(flags or {}),
               "generators": [generator for _, _, generator, _ in told]}
    nbytes = sum(size for _, size, _, _ in told)
    store = None

    def stage():
        nonlocal store
        store = _core.SaveDirectory(checkpoints, step)
        return store.stage(nbytes)

    def publish():
        return store.publish(json.dumps(manifest), json.dumps(trainer), texts=config_texts(module, source, None),
                             source=os.fspath(source or ""), keep=keep)

    try:
        staging = on_first("save: stage", stage)
        for files in agree("save: write", lambda: write(state, staging, manifest["id"])):
            manifest["files"] += files
        set_aside = on_first("save: publish", publish)
    except BaseException:
        if store is not None:
            store.discard()
        raise
    finally:
        if store is not None:
            store.release()
    return SaveReport(checkpoints / f"step-{step:09d}", step, nbytes, time.perf_counter() - started, set_aside,
                      unsaved_state(module, checkpoints))


def describe(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, step: int) -> State:
    """Records of all parameters and persistent buffers, and the rows of what this rank writes. No communication."""
    tensors = held_tensors(module)
    require_memory(tensors)
    groups = groups_of(optimizer, tensors)
    state = State([], [], [], [])
    for name, tensor in tensors.items():
        part = saved_part(name, tensor)
        kept = kept_for(optimizer, name, tensor) if name in groups else None
        for counter, count in (kept.counters if kept else {}).items():
            require_step(name, counter, count, step)
        state.records.append({"fqn": name, "dtype": dtype_name(name, tensor), "shape": list(tensor.shape), "dim": part.dim,
                              "trainable": tensor.requires_grad, "stored": True,
                              "optimizer": kept and {"moments": list(kept.moments), "counters": kept.counters}})
        if part.writes:
            add_row(state, state.model, name, tensor, part)
            for moment, value in (kept.moments if kept else {}).items():
                add_row(state, state.optimizer, f"{name}.{moment}", value, part)
    return state


def add_row(state: State, rows: list, name: str, tensor: torch.Tensor, part) -> None:
    local = on_host(tensor)
    state.memory.append(local)
    rows.append((name, local.data_ptr(), dtype_name(name, tensor), list(tensor.shape), part.offset, part.size))


def write(state: State, staging: pathlib.Path, identity: str) -> list[dict]:
    """This rank's files; none where another rank writes all that it has."""
    files = state.files
    return [_core.write_shard_file(staging, this_rank(), part, len(files), rows, identity) for part, rows in enumerate(files) if rows]


def count_of(argument: str, value) -> int:
    """Raises InputError bad-flag for what is no count."""
    try:
        count = operator.index(value)
    except TypeError:
        raise bad_argument("tieshard.save", argument, "a whole number", value) from None
    if not 0 <= count < 1 << 63:
        raise bad_argument("tieshard.save", argument, "0 or more", value)
    return count


def require_texts(flags) -> None:
    """Raises InputError bad-flag."""
    if flags is None:
        return
    if not isinstance(flags, dict):
        raise bad_argument("tieshard.save", "flags", "a dict of texts", flags)
    for name, value in flags.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise bad_argument("tieshard.save", f"flags[{name!r}]", "texts (of anything else its JSON)", value)


def require_step(name: str, counter: str, count: int, step: int) -> None:
    if count > step:
        raise UsageError(Diagnostic("wrong-state", what="an optimizer has made more steps than the checkpoint is to say",
                                    where=f"{name}, {counter}", why=f"expected at most step={step}, got {count}", fix="pass the number of optimizer steps made in all"))


def require_equal(digests: list[str]) -> None:
    other: typing.Iterator[int] = (rank for rank, digest in enumerate(digests) if digest != digests[0])
    if (rank := next(other, None)) is not None:
        raise UsageError(Diagnostic("wrong-state", what="ranks would save different states", where=f"rank 0 and rank {rank}",
                                    why="expected the same step, parameters and optimizer state on both",
                                    fix="call save on every rank, after the same step"))
