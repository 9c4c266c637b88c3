"""What a module holds that a checkpoint has to: every parameter and persistent buffer, each storage once, by its canonical name.

Flow:   torch.nn.Module -> [this] -> tieshard.save, tieshard.resume, tieshard.export_hf
"""

from __future__ import annotations

import os

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tieshard.errors import Diagnostic, UsageError
from tieshard.local_parts import local_tensor
from tieshard.module_table import plain_name

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32",
          torch.uint64: "U64", torch.bool: "BOOL", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
          torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0"}
TORCH_TYPES = {name: dtype for dtype, name in DTYPES.items()}


def own_module(module: torch.nn.Module) -> torch.nn.Module:
    """What DistributedDataParallel or torch.compile wraps, with its shards in place: what FSDP2 has gathered is freed."""
    while isinstance(module, DistributedDataParallel) or hasattr(module, "_orig_mod"):
        module = module.module if isinstance(module, DistributedDataParallel) else module._orig_mod
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
    return module


def held_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters in registration order, then persistent buffers. A tensor with several names is there under its first one."""
    found, seen = {}, set()
    for name, tensor in [*module.named_parameters(), *persistent_buffers(module)]:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[plain_name(name)] = tensor
    return found


def aliases_of(module: torch.nn.Module) -> list[tuple[str, str]]:
    """(canonical, alias): the other names of parameters, in registration order."""
    first, pairs = {}, []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        canonical = first.setdefault(id(parameter), plain_name(name))
        if canonical != plain_name(name):
            pairs.append((canonical, plain_name(name)))
    return pairs


def persistent_buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    found = []
    for prefix, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and name not in submodule._non_persistent_buffers_set:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    return found


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """As the format spells it. Raises UsageError dtype-not-loadable for one that it does not have."""
    if tensor.dtype not in DTYPES:
        raise UsageError(Diagnostic("dtype-not-loadable", what="a tensor has a dtype that no safetensors file can hold", where=name,
                                    why=f"expected one of {', '.join(DTYPES.values())}, got {tensor.dtype}",
                                    fix="convert the module first"))
    return DTYPES[tensor.dtype]


def require_memory(tensors: dict[str, torch.Tensor]) -> None:
    """Raises UsageError still-on-meta."""
    empty = [name for name, tensor in tensors.items() if local_tensor(tensor).is_meta]
    if empty:
        more = f" and {len(empty) - 4} more" if len(empty) > 4 else ""
        raise UsageError(Diagnostic("still-on-meta", what="a tensor has no bytes yet", where=", ".join(empty[:4]) + more,
                                    why="expected values to write, got tensors on the meta device",
                                    fix="tieshard.load(module, directory) first"))


def unsaved_state(module: torch.nn.Module, directory: os.PathLike) -> list[Diagnostic]:
    """A warning where modules have extra state, which no checkpoint of ours holds."""
    names = [f"{plain_name(name) or 'the module'} ({type(part).__name__})" for name, part in module.named_modules()
             if type(part).get_extra_state is not torch.nn.Module.get_extra_state]
    if not names:
        return []
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [Diagnostic("checkpoint-mismatch", level="warning", what="a checkpoint lacks state of a module", where=str(directory),
                       why=f"expected tensors only, got modules with get_extra_state: {', '.join(names[:4])}{more}",
                       fix="keep what it returns yourself: as text in flags of save(), back with set_extra_state after resume()")]


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, row-major in memory of the host; its own memory where that is so already."""
    return local_tensor(tensor).detach().to("cpu").contiguous()


def like(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """`local` as a tensor that is placed as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
                              stride=parameter.stride())
