"""Starting the built programs from a test, and what a run leaves behind."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "MPI_")


def clean_environment(**variables):
    """This process's environment without any launcher's variables, plus these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(RANK_VARIABLES)}
    return kept | {name: str(value) for name, value in variables.items()}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, env=None):
    """A process that leads a session of its own, so that all it starts can be found and ended."""
    return subprocess.Popen([str(word) for word in command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)


def end(process):
    """Asks the process group to end (torchrun then ends its workers, which have sessions of their own), then kills it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            pass


def run(command, timeout=300, env=None):
    """Runs to the end in a process group of its own; on a timeout nothing of it is left behind."""
    process = start(command, env)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_well(command, **options):
    """As run; fails the test, with what the command said, unless its exit status is 0."""
    done = run(command, **options)
    said = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}"
    return done


def read_metrics(out):
    """The lines of a run's metrics.jsonl; a last line that is still being written is left out."""
    path = out / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for(condition, seconds, what):
    """The first true value of condition(), asked ten times a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {seconds} s")
