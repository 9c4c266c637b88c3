"""File operations that fail or are a program's last: tests/faults, put under the programs by LD_PRELOAD."""

import struct

import pytest
from running import clean_environment
from two_sides import bin_dir


class Faults:
    """Environments for a job whose file operations under one directory are counted, over all of its processes."""

    def __init__(self, folder):
        self.library = bin_dir() / "libtieshard_faults.so"
        assert self.library.is_file(), f"{self.library} is not there: build it (target tieshard_faults)"
        self.counter = folder / "operations"

    def environment(self, fault, under, at=1, calls="", length=1):
        """For a job that has the fault (enospc, eio, einval, kill, kill-all, count) at its operation number `at`, from 1.

        @param calls   which operations count: write, allocate, sync, rename, exchange, make, remove; all when empty
        @param length  how many in a row fail; 0: all from `at` on
        """
        self.counter.write_bytes(bytes(8))
        return clean_environment(LD_PRELOAD=self.library, TIESHARD_FAULT=fault, TIESHARD_FAULT_UNDER=under.resolve(),
                                 TIESHARD_FAULT_AT=at, TIESHARD_FAULT_CALLS=calls, TIESHARD_FAULT_FOR=length,
                                 TIESHARD_FAULT_COUNTER=self.counter)

    def counted(self):
        """Operations of the job that ran last; a test whose job made none fails."""
        (number,) = struct.unpack("<Q", self.counter.read_bytes())
        if number == 0:
            pytest.fail("no file operation was counted: the faults are not in place")
        return number
