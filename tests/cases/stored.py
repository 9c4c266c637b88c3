"""Tensors as bytes: the values that the cases store, and how a safetensors file lays them out."""

import hashlib
import json
import struct
from dataclasses import dataclass, replace

import numpy as np

WIDE = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
ELEMENT_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32,
                "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8,
                "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file. `data` are its bytes, row by row."""

    dtype: str
    shape: tuple
    data: bytes

    def floats(self):
        """The values of a wide float, flat."""
        if self.dtype == "BF16":
            return (np.frombuffer(self.data, "<u2").astype("<u4") << 16).view("<f4")
        return np.frombuffer(self.data, WIDE[self.dtype])

    def with_element(self, index, value):
        values = self.floats().copy()
        values[index] = value
        return floats_as(values, self.shape, self.dtype)

    def reshaped(self, *shape):
        return replace(self, shape=shape)


def floats_as(values, shape, dtype="F32"):
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if dtype == "BF16":
        data = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    else:
        data = values.astype(WIDE[dtype]).tobytes()
    return Stored(dtype, tuple(shape), data)


def seed_of(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:3], "big")


def numbered(name, shape, dtype="F32"):
    """Multiples of 1/32 between -3.75 and 3.75 that differ from name to name: exact in every wide float."""
    count = int(np.prod(shape, dtype=np.int64))
    return floats_as(((seed_of(name) + 29 * np.arange(count)) % 241 - 120) / 32, shape, dtype)


def patterned(name, shape, dtype):
    """Bytes that are harmless in any narrow dtype: small positive codes."""
    count = (int(np.prod(shape, dtype=np.int64)) * ELEMENT_BITS[dtype] + 7) // 8
    limit = 2 if dtype == "BOOL" else 0x50
    return Stored(dtype, tuple(shape), bytes((seed_of(name) + 7 * i) % limit for i in range(count)))


def table_of(tensors):
    """The header's entries and the data behind them, tensors in the order given."""
    entries, data = {}, bytearray()
    for name, tensor in tensors.items():
        begin = len(data)
        data += tensor.data
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    return entries, bytes(data)


def file_bytes(header, data, multiple=8):
    header += b" " * (-len(header) % multiple)
    return struct.pack("<Q", len(header)) + header + data


def header_bytes(entries, metadata):
    top = {} if metadata == "absent" else {"__metadata__": metadata}
    return json.dumps(top | entries, ensure_ascii=False, separators=(",", ":")).encode()
