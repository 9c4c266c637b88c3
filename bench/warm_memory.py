"""Brings free memory to the machine before a run is timed.

    python bench/warm_memory.py MIB

A virtual machine may give the memory that is free back to its host; who touches it next waits for the host, several
times as long as the run takes. So the same amount is allocated, touched in huge pages and freed right before each run,
of every side, and what is timed is the run. On a machine of its own this changes nothing.
"""

import mmap
import subprocess
import sys

HUGE_PAGE = 2 << 20


def touch(mib):
    """In this process, which must end for the memory to be free again."""
    memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, mib << 20, HUGE_PAGE):
        memory[page] = 1


def warm_memory(mib):
    """Twice: what the host brings slowly the first time is there at once the second, and stays for some seconds."""
    for _ in range(2):
        subprocess.run([sys.executable, __file__, str(int(mib))], check=True)


if __name__ == "__main__":
    touch(int(sys.argv[1]))
