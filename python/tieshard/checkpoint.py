"""A checkpoint opened for reading: its tensors as views of the mapped files, its config, its ties.

Flow:   tieshard._core.OpenedCheckpoint -> [this] -> the caller, tieshard.load
"""

from __future__ import annotations

import collections.abc
import json
import os
import typing

from tieshard import _core

if typing.TYPE_CHECKING:
    import numpy
    import torch

NUMPY_TYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
               "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": "<u2"}
PACKED = {"F4": (4, 8), "F6_E2M3": (6, 8), "F6_E3M2": (6, 8)}  # bits of an element; viewed as bytes


class StoredView:
    """A stored tensor, or a part of it, that shares its memory with the file: nothing is read until it is looked at.

    Reads of pages go to the page cache; the memory is private to the process, so that no write reaches the file.
    Index it like an array for a part: `view[2:4, :8]` is a view too.
    """

    def __init__(self, name: str, dtype: str, array: numpy.ndarray):
        self.name, self.dtype, self._array = name, dtype, array

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in elements; of packed types (F4, F6) one size, in bytes."""
        return self._array.shape

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index) -> StoredView:
        return StoredView(self.name, self.dtype, self._array[index][...])

    def numpy(self) -> numpy.ndarray:
        """A read-only array. numpy has no BF16 and no floats of 8 bits: these are given as unsigned integers of their size."""
        return self._array

    def torch(self) -> torch.Tensor:
        """A tensor of the stored dtype over the same memory. Writing to it copies the page first; the file stays as it is."""
        import torch

        return torch.from_dlpack(self)

    def __array__(self, dtype=None, copy=None):
        import numpy

        return numpy.array(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options):
        return _core.with_dtype(self._array, self.dtype if self.dtype not in PACKED else "U8").__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)

    def __repr__(self) -> str:
        return f"StoredView({self.name}, {self.dtype}, {list(self.shape)})"


class Checkpoint(_core.OpenedCheckpoint):
    """A checkpoint directory, or one weights file: a mapping from stored name to StoredView. Headers only are read."""

    @property
    def config(self) -> dict:
        """config.json."""
        return json.loads(self.config_json)

    @property
    def ties(self) -> _core.TieRegistry:
        """Which names are one weight. Raises InputError where config and files contradict each other."""
        return _core.TieRegistry.of(self)

    def __getitem__(self, name: str) -> StoredView:
        import numpy

        tensor = self._by_name[name]
        raw = numpy.from_dlpack(self.bytes_of(name))
        if tensor.dtype in PACKED:
            return StoredView(name, tensor.dtype, raw)
        return StoredView(name, tensor.dtype, raw.view(NUMPY_TYPES.get(tensor.dtype, "u1")).reshape(tensor.shape))

    @property
    def _by_name(self) -> dict[str, _core.StoredTensor]:
        found = self.__dict__.get("_index")
        if found is None:
            found = self.__dict__["_index"] = {tensor.name: tensor for tensor in self.tensors}
        return found

    def stored(self, name: str) -> _core.StoredTensor:
        """Where the tensor of this name lies. Raises KeyError."""
        return self._by_name[name]

    def __iter__(self):
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name) -> bool:
        return name in self._by_name

    def keys(self):
        """Stored names, sorted."""
        return self._by_name.keys()

    def items(self):
        """(name, StoredView) of every stored tensor."""
        return collections.abc.ItemsView(self)

    def values(self):
        """StoredView of every stored tensor."""
        return collections.abc.ValuesView(self)

    def get(self, name: str, default=None):
        """The StoredView of this name, or `default`."""
        return self[name] if name in self else default

    def __repr__(self) -> str:
        size = sum(tensor.nbytes for tensor in self.tensors)
        return f"Checkpoint({str(self.directory)!r}, {self.family or 'unknown family'}, {len(self)} tensors, {size:,} bytes)"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{tensor.name}</td><td>{tensor.dtype}</td><td>{list(tensor.shape)}</td><td>{self.file_of(tensor)}"
                       "</td></tr>" for tensor in self.tensors)
        return f"<table><tr><th>tensor</th><th>dtype</th><th>shape</th><th>file</th></tr>{rows}</table>"


collections.abc.Mapping.register(Checkpoint)


def open(directory: str | os.PathLike) -> Checkpoint:  # noqa: A001 (as io.open, in its own namespace)
    """Opens a checkpoint directory (config.json and safetensors files) or one weights file; reads headers only.

    Raises InputError: directory-not-found, config-missing, no-weights, index-malformed, and what a broken header comes to.
    """
    return Checkpoint(os.fspath(directory))


def plan(directory: str | os.PathLike, ranks: int, **options) -> _core.ShardPlan:
    """What each of `ranks` ranks would hold of the checkpoint in `directory`; options as ShardPlan.build."""
    return _core.ShardPlan.build(open(directory), ranks, **options)
