"""The floor under a load that copies: the same bytes, read with pread by one process a rank into fresh memory.

    python bench/read_floor.py [--ranks 2] FILE...

Prints the seconds of the slowest process into pages of 4 KiB and into huge pages (2 MiB). Each rank reads its part of
every file, in pieces of 1 MiB, with the page cache warm.
"""

import argparse
import json
import mmap
import os
import pathlib
import time

PIECE = 1 << 20


def parts(files, rank, ranks):
    """(path, first byte, end) of what `rank` reads."""
    for file in files:
        size = file.stat().st_size
        yield file, size * rank // ranks, size * (rank + 1) // ranks


def read_parts(files, rank, ranks, huge):
    """Seconds to read this rank's bytes into memory that was not there before."""
    total = sum(end - begin for _, begin, end in parts(files, rank, ranks))
    memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    view = memoryview(memory)
    start = time.perf_counter()
    filled = 0
    for file, begin, end in parts(files, rank, ranks):
        descriptor = os.open(file, os.O_RDONLY)
        while begin < end:
            count = os.preadv(descriptor, [view[filled:filled + min(PIECE, end - begin)]], begin)
            begin += count
            filled += count
        os.close(descriptor)
    return time.perf_counter() - start


def floor_seconds(files, ranks, huge):
    """Seconds of the slowest of `ranks` processes that read together."""
    gate, answers = os.pipe(), os.pipe()
    for rank in range(ranks):
        if os.fork() == 0:
            os.close(gate[1])
            os.read(gate[0], 1)  # until the parent closes its end
            os.write(answers[1], json.dumps(read_parts(files, rank, ranks, huge)).encode() + b"\n")
            os._exit(0)
    os.close(gate[0])
    os.close(answers[1])
    os.close(gate[1])
    with os.fdopen(answers[0]) as lines:
        seconds = [json.loads(line) for line in lines]
    for _ in range(ranks):
        os.wait()
    return max(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    for huge in (False, True):
        print(f"{'2 MiB' if huge else '4 KiB'} pages: {floor_seconds(arguments.files, arguments.ranks, huge):.3f} s")


if __name__ == "__main__":
    main()
