"""Fills a torch module in place from a checkpoint: this rank's slices only, each storage once, whatever the module's class.

Flow:   torch.nn.Module, tieshard._core.ModelSource -> [this] -> tieshard.ledger
"""

from __future__ import annotations

import os
import time
import typing

import torch

from tieshard import _core
from tieshard.buffers import other_buffers, recompute
from tieshard.checkpoint import open as open_checkpoint
from tieshard.conversions import Conversions, find_conversions, load_merged
from tieshard.held_tensors import own_module
from tieshard.ledger import Ledger, LedgerEntry
from tieshard.local_parts import Box, boxes, local_tensor
from tieshard.module_table import parameter_table
from tieshard.module_ties import declared_ties, holders, mend
from tieshard.parameter_memory import device_of, give_memory, overlaps_itself, replace_local
from tieshard.staging import copy_to_device, stages
from tieshard.stored_values import StoredNames, find_buffers, find_parameters, load_buffers, load_parameter

MOST_THREADS = 8


class Wanted(typing.NamedTuple):
    """One box that is read, and what becomes of the array that it is read into."""

    name: str
    parameter: torch.nn.Parameter
    box: Box
    whole: bool  #: the box is all of the local tensor


def load(module: torch.nn.Module, directory: str | os.PathLike, *, device: torch.device | str | None = None, tie: dict | None = None,
         untie: list[str] | None = None, on_tie_conflict: str = "untie", rename: bool = True, init: dict | None = None,
         threads: int | None = None, read_buffer: int = 16 << 20, mmap: bool = True, check_values: bool = True) -> Ledger:
    """Loads the checkpoint in `directory` into `module`, plain or sharded by FSDP2, and gives account.

    Every rank calls it for itself; nothing is sent between them. Names come from the module, so that any architecture
    works. A parameter stays the same object: one on the meta device gets memory, on `device` (default: that of its mesh, else
    the CPU), one that has memory is overwritten. Values are converted to the parameter's dtype on the way. What FSDP2 has gathered
    is freed first; names are those of the module that DistributedDataParallel wraps.

    tie, untie, on_tie_conflict, rename, init: as the flags of `tieshard load`. threads: of this rank (default: the
    processors shared by the ranks of the host, at most 8). read_buffer: bytes held beyond the parameters. mmap: parts that the file
    holds as they are wanted become private pages of it; False copies them. check_values: a warning for NaN and infinity.

    Raises InputError (missing-parameter, shape-mismatch, ...), UsageError, SharedObjectError (a lost tie that cannot be mended),
    PeerError (io-failed, file-changed).
    """
    started = time.perf_counter()
    directory, module = os.fspath(directory), own_module(module)
    checkpoint = open_checkpoint(directory)
    conversions = find_conversions(module, checkpoint) if rename else Conversions()
    table = [row for row in parameter_table(module) if row[0] not in conversions.targets]
    source = _core.ModelSource(directory, table, names=conversions.names, declared=declared_ties(module), tie=tie or {},
                               untie=untie or [], on_tie_conflict=on_tie_conflict, rename=rename, init=init or {})
    options = {"threads": threads or default_threads(), "buffer_bytes": read_buffer, "map": mmap, "check_values": check_values}
    entries = source.entries()
    names = StoredNames(checkpoint, conversions.names, entries)
    buffers, others = find_buffers(module, names), find_parameters(module, names, conversions.targets)
    mended = mend(module, source.ties)  # all that can be refused without a read has been
    where = holders(module)
    parameters = {name: owner._parameters[attribute] for name, (owner, attribute) in where.items() if owner._parameters[attribute] is not None}
    with torch.no_grad():
        account = read_all(source, {entry["name"]: parameters[entry["name"]] for entry in entries}, device, options)
        more = []
        for each in conversions.merged:
            for name in each.targets:
                give_memory(parameters[name], device_of(parameters[name], device))
            more += load_merged(each, module, checkpoint, parameters)
        for each in others:
            give_memory(each.parameter, device_of(each.parameter, device))
            more.append(load_parameter(each, checkpoint))
        target = buffer_device(parameters, device)
        loaded = load_buffers(buffers, checkpoint, target)
        made, left = recompute(module, other_buffers(module, loaded), target)
    used = conversions.sources.union(loaded, (each.stored for each in buffers),
                                     *((each.stored, each.name, *each.aliases) for each in others))
    return Ledger(entries=[entry_of(entry, parameters[entry["name"]], account) for entry in entries] + more,
                  findings=findings_of(source, account, used), unused=[name for name in source.unused if name not in used],
                  buffers_loaded=loaded, buffers_recomputed=made, buffers_left=left, mended=mended,
                  bytes_read=account["bytes_read"], bytes_mapped=account["bytes_mapped"], seconds=time.perf_counter() - started)


def default_threads() -> int:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // max(1, ranks)))


def buffer_device(parameters: dict, device) -> torch.device:
    """Where buffers of the meta device are made: beside the parameters."""
    return torch.device(device) if device else next((local_tensor(each).device for each in parameters.values()), torch.device("cpu"))


def read_all(source: _core.ModelSource, parameters: dict, device, options: dict) -> dict:
    """Reads every parameter: straight into memory of the CPU, and by way of pinned memory onto other devices."""
    account = {"bytes_read": 0, "bytes_mapped": 0, "mapped": set(), "not_finite": []}
    on_cpu, elsewhere = [], []
    for name, parameter in parameters.items():
        target = device_of(parameter, device)
        (on_cpu if target.type == "cpu" else elsewhere).append((name, parameter, target))
    read_on_cpu(source, on_cpu, options, account)
    for group in stages(elsewhere):
        copy_to_device(group, lambda rows: run(source, rows, options, account))
    return account


def run(source: _core.ModelSource, rows: list, options: dict, account: dict) -> list:
    arrays, report = source.read(rows, **options)
    account["bytes_read"] += report["bytes_read"]
    account["bytes_mapped"] += report["bytes_mapped"]
    account["mapped"].update(row[0] for row, mapped in zip(rows, report["mapped"]) if mapped)
    if report["not_finite"] is not None:
        account["not_finite"].append(report["not_finite"])
    return arrays


def read_on_cpu(source: _core.ModelSource, wanted: list, options: dict, account: dict) -> None:
    rows, then = [], []
    for name, parameter, target in wanted:
        local = local_tensor(parameter)
        parts = boxes(parameter, name)
        fresh = local.is_meta or local.device != target or overlaps_itself(local)
        straight = len(parts) == 1 and (fresh or local.is_contiguous())
        for box in parts:
            address = local.data_ptr() if straight and not fresh else 0
            rows.append((name, address, str(parameter.dtype), box.offset, box.size))
            then.append(Wanted(name, parameter, box, straight))
        if not straight:  # several boxes, or nothing
            give_memory(parameter, target)
    for each, array in zip(then, run(source, rows, options, account)):
        if array is None:
            continue
        values = torch.from_dlpack(array)
        if each.whole:
            replace_local(each.parameter, values)
        else:
            place = tuple(slice(begin, begin + size) for begin, size in zip(each.box.place, each.box.size))
            local_tensor(each.parameter)[place].copy_(values)


def entry_of(entry: dict, parameter: torch.Tensor, account: dict) -> LedgerEntry:
    return LedgerEntry(**entry, elements=local_tensor(parameter).numel(), mapped=entry["name"] in account["mapped"])


def findings_of(source: _core.ModelSource, account: dict, used: set[str]) -> list:
    """What core found; the tensors that core has no use for and this module has are left out of it."""
    unused = [name for name in source.unused if name not in used]
    findings = []
    for finding in source.findings:
        if finding.code == "unused-tensor" and finding.level == "warning" and len(unused) < len(source.unused):
            if not unused:
                continue
            more = f" and {len(unused) - 4} more" if len(unused) > 4 else ""
            finding = _core.Diagnostic(finding.code, level=finding.level, what=finding.what, where=", ".join(unused[:4]) + more,
                                       why=f"{len(unused)} stored tensors have no place in the module", fix=finding.fix)
        findings.append(finding)
    return findings + account["not_finite"]
