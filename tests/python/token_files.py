"""Writes the formats of token files as the programs do that they come from."""

import struct

import numpy

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_raw(path, tokens, dtype="uint16"):
    numpy.asarray(tokens, dtype=dtype).tofile(path)
    return path


def write_llmc(path, tokens, wide=False):
    """As dev/data/data_common.py of llm.c lays a file out: 256 int32, then the tokens."""
    header = numpy.zeros(256, dtype=numpy.int32)
    header[:3] = (20240801, 7, len(tokens)) if wide else (20240520, 1, len(tokens))
    body = numpy.asarray(tokens, dtype=numpy.uint32 if wide else numpy.uint16)
    path.write_bytes(header.tobytes() + body.tobytes())
    return path


def write_megatron(prefix, documents, dtype="uint16"):
    """As IndexedDatasetBuilder of Megatron-LM: one sequence a document, prefix.bin and prefix.idx. Gives the .bin."""
    width = numpy.dtype(dtype).itemsize
    data = b"".join(numpy.asarray(document, dtype=dtype).tobytes() for document in documents)
    lengths = numpy.asarray([len(document) for document in documents], dtype=numpy.int32)
    pointers = width * (numpy.cumsum(lengths, dtype=numpy.int64) - lengths)
    indices = numpy.arange(len(documents) + 1, dtype=numpy.int64)
    path = prefix.with_suffix(".bin")
    path.write_bytes(data)
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, MEGATRON_CODES[dtype], len(lengths), len(indices))
        + lengths.tobytes() + pointers.astype(numpy.int64).tobytes() + indices.tobytes())
    return path
