"""A directory that transformers loads, from a module that no rank ever gathers: each rank writes its part of the final files.

Flow:   torch.nn.Module -> tieshard.stored_names -> [this] -> tieshard._core (ExportLayout, ExportFileWriter)
Source: transformers' save_pretrained (names, files, config); runtime/state/hf_export.h, which does the same for a module of LibTorch's.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import time

import torch
from torch.distributed.tensor import DTensor

from tieshard import _core
from tieshard.errors import Diagnostic, InputError, PeerError, UsageError, bad_argument
from tieshard.exchanged_rows import held_parts
from tieshard.held_tensors import DTYPES, aliases_of, dtype_name, held_tensors, own_module, require_memory
from tieshard.model_files import config_texts
from tieshard.ranks import agree, on_first, rank_count, this_rank
from tieshard.stored_names import StoredPart, stored_parts


@dataclasses.dataclass
class ExportReport:
    """What became of an export; the same on every rank."""

    directory: pathlib.Path
    files: list[str]  #: safetensors files, in order
    tensors: int
    left_out: list[str]  #: other names of tied weights, which are stored once
    nbytes: int  #: of the safetensors files
    seconds: float
    findings: list[_core.Diagnostic]  #: not-finite: values that are infinite in the dtype that was asked for


def export_hf(module: torch.nn.Module, directory: str | os.PathLike, *, source: str | os.PathLike | None = None,
              dtype: torch.dtype | str | None = None, max_shard_bytes: int = 50 << 30, replace: bool = False) -> ExportReport:
    """Writes `directory` as the module's save_pretrained would, without gathering. A collective: every rank calls it.

    Names are those of transformers' files, each storage once. source: a model directory whose tokenizer and similar files are copied;
    config.json is the model's own, where it is one of transformers. dtype: of floating-point tensors, or its name; None: as they are.
    replace: a model directory of that name goes when the new one is complete; anything else stays (output-exists).
    It is staged beside its name, read back, synced, then renamed.

    Raises UsageError (not-convertible: parameters that transformers stores in a way that cannot be undone here; still-on-meta),
    SharedObjectError tie-not-shared, InputError (bad-flag, output-exists), PeerError (disk-full, io-failed, export-mismatch, peer-failed).
    """
    started = time.perf_counter()
    out = pathlib.Path(directory)
    module = own_module(module)
    tensors = held_tensors(module)
    planned = []

    def look():
        nonlocal dtype
        dtype = dtype_of(dtype)
        if not isinstance(max_shard_bytes, int) or max_shard_bytes < 1:
            raise bad_argument("tieshard.export_hf", "max_shard_bytes", "a number of bytes", max_shard_bytes)
        planned.append(plan(module, tensors, dtype, max_shard_bytes))

    agree("export: plan", look)
    parts, layout = planned[0]

    def stage():
        if replace:
            require_replaceable(out)
        texts = config_texts(module, source, dtype or main_dtype(tensors))
        try:
            return layout.stage(out, replace=replace, texts=texts, source=os.fspath(source or ""))
        except PeerError:  # a full disk, say: what was made so far goes
            shutil.rmtree(out.parent / f".{out.name}.staging", ignore_errors=True)
            raise

    staging = on_first("export: stage", stage)
    try:
        overflowed = PartWriter(parts, tensors, layout, staging, dtype).write()
        on_first("export: publish", lambda: layout.publish(out, replace=replace))
    except BaseException:
        if this_rank() == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    findings = [_core.overflow_finding(overflowed, str(out))] if overflowed else []
    return ExportReport(directory=out, files=layout.files, tensors=len(parts), left_out=[alias for _, alias in aliases_of(module)],
                        nbytes=layout.nbytes, seconds=time.perf_counter() - started, findings=findings)


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Raises InputError bad-flag for what is no floating-point dtype of the format, nor the name of one."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None or isinstance(found, torch.dtype) and found in DTYPES and found.is_floating_point:
        return found
    raise bad_argument("tieshard.export_hf", "dtype", "a floating-point dtype of torch or its name, such as torch.bfloat16", dtype)


def require_replaceable(directory: pathlib.Path) -> None:
    """Raises InputError output-exists for what is no model directory: a run's checkpoints, or files that no export wrote."""
    if not directory.exists():
        return
    names = {path.name: path.is_dir() for path in directory.iterdir()} if directory.is_dir() else {directory.name: False}
    folders = sorted(name for name, is_folder in names.items() if is_folder)
    is_model = any(name == "config.json" or name.endswith(".safetensors") for name in names)
    if not folders and "manifest.json" not in names and (is_model or not names) and directory.is_dir():
        return
    got = f"one with {folders[0]}/" if folders else "a training checkpoint" if "manifest.json" in names else "something else"
    raise InputError(Diagnostic("output-exists", what="what is to be replaced is no model directory", where=str(directory),
                                why=f"expected config.json and weights, and no folders beside them, got {got}",
                                fix="choose another directory, or remove this one"))


def plan(module: torch.nn.Module, tensors: dict[str, torch.Tensor], dtype: torch.dtype | None,
         max_shard_bytes: int) -> tuple[list[StoredPart], _core.ExportLayout]:
    """What is stored, and where. No communication; equal on every rank."""
    require_memory(tensors)
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor) and tensor.device_mesh.size() != rank_count():
            raise UsageError(Diagnostic("bad-shard-dim", what="a parameter is placed on a part of the ranks", where=name,
                                        why=f"expected a mesh of all {rank_count()} ranks, got one of {tensor.device_mesh.size()}",
                                        fix="export in a job of the ranks that hold the model"))
    parts = stored_parts(module)
    rows = [(part.name, stored_dtype(part.parameter, tensors[part.parameter], dtype), part.shape) for part in parts]
    return parts, _core.ExportLayout(rows, max_shard_bytes)


def stored_dtype(name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> str:
    return DTYPES[dtype] if dtype is not None and tensor.dtype.is_floating_point else dtype_name(name, tensor)


def main_dtype(tensors: dict[str, torch.Tensor]) -> torch.dtype:
    """That config.json says: as save_pretrained, of the first floating-point tensor."""
    return next((tensor.dtype for tensor in tensors.values() if tensor.dtype.is_floating_point), torch.float32)


def writes(tensor: torch.Tensor) -> bool:
    """Whether this rank is the one of the replicas that writes."""
    if not isinstance(tensor, DTensor):
        return this_rank() == 0
    return all(place == 0 for place, placement in zip(tensor.device_mesh.get_coordinate(), tensor.placements) if placement.is_replicate())


class PartWriter:
    """This rank's part of all files. A rank that cannot write goes on exchanging rows, and says so at the end."""

    def __init__(self, parts: list[StoredPart], tensors: dict[str, torch.Tensor], layout: _core.ExportLayout, staging: pathlib.Path,
                 dtype: torch.dtype | None):
        self.tensors, self.dtype, self.places = tensors, dtype, layout.places()
        self.paths = [staging / name for name in layout.files]
        self.writers: dict[int, _core.ExportFileWriter] = {}
        self.failure: Exception | None = None
        self.of: dict[str, list[StoredPart]] = {}
        for part in parts:
            self.of.setdefault(part.parameter, []).append(part)

    def write(self) -> dict[str, int]:
        """By tensor, the values that became infinite on any rank. A collective."""
        for name, parts in self.of.items():
            if not writes(self.tensors[name]):
                continue
            for held in held_parts(name, self.tensors[name]):
                try:
                    self.write_held(parts, held)
                except Exception as error:  # noqa: BLE001 (the others wait for what this rank gives)
                    self.failure = self.failure or error
        sums: dict[str, int] = {}
        for of_rank in agree("export: write", self.finish):
            for name, values in of_rank.items():
                sums[name] = sums.get(name, 0) + values
        return sums

    def write_held(self, parts: list[StoredPart], held) -> None:
        if self.failure is not None:
            return
        for part in parts:
            file, offset = self.places[part.name]
            if file not in self.writers:
                self.writers[file] = _core.ExportFileWriter(self.paths[file])
            self.writers[file].write(part.name, offset, stored_dtype(part.parameter, held.values, self.dtype), (part.offset, part.size),
                                     held.values.data_ptr(), dtype_name(part.parameter, held.values), (held.offset, held.size))

    def finish(self) -> dict[str, int]:
        if self.failure is not None:
            raise self.failure
        found: dict[str, int] = {}
        for writer in self.writers.values():
            found |= writer.finish()
        return found
