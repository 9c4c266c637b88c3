"""The programs, the models and the tokens that the tests of the built programs share.

TIESHARD_BIN_DIR says where the programs are (default build/bin). A program or package that is missing fails the tests:
it never skips them. Models are made into build/ at first use and kept.
"""

import signal
import sys

import pytest
from running import BUILD, ROOT, end, run_well, start

sys.path.insert(0, str(ROOT / "bench"))

from two_sides import bin_dir


def pytest_configure():
    """A terminated pytest unwinds, as after Ctrl-C, so that the processes of its tests end with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def tieshard():
    program = bin_dir() / "tieshard"
    assert program.is_file(), f"{program} is not there: build it (make build), or set TIESHARD_BIN_DIR"
    return program


@pytest.fixture(scope="session")
def tieshard_runtime():
    program = bin_dir() / "tieshard-runtime"
    assert program.is_file(), f"{program} is not there: build it (make build), or set TIESHARD_BIN_DIR"
    return program


@pytest.fixture(scope="session")
def smollm2():
    """The real, tied SmolLM2-135M-Instruct: BF16, one file, 272 tensors."""
    run_well([sys.executable, ROOT / "tools" / "make_smollm2.py", BUILD / "smollm2"])
    return BUILD / "smollm2"


@pytest.fixture(scope="session")
def reference():
    """Directory of the tiny checkpoints that tests/reference/make_reference.py writes."""
    run_well([sys.executable, ROOT / "tests" / "reference" / "make_reference.py", BUILD / "reference"])
    return BUILD / "reference"


@pytest.fixture(scope="session")
def tiny(reference):
    """A tied Llama of 57 thousand parameters, vocab 101, FP32."""
    return reference / "llama_tied"


@pytest.fixture
def processes():
    """Starts processes that are ended, with what they started, when the test ends."""
    started = []

    def start_one(command, env=None):
        started.append(start(command, env))
        return started[-1]

    yield start_one
    for process in started:
        end(process)
