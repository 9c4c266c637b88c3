"""Runs, reshards and exports that are killed, or whose disk is full or fails, at any file operation: nothing that was saved is
lost, nothing that is half written has a name, and what goes on from there comes to the same end, bit by bit.

TIESHARD_KILLS is the number of kills of each kind of job (20). Up to three times as many operations of a torch-free job fail, and
always the last ones, which give the output its name: from 200 on all do.
"""

import os
import random
import shutil
import signal

import pytest
from checkpoints import STEPS, SavingRun, assert_same_end, assert_whole, checkpoint, hidden_in, steps_of, tensors_of
from faults import Faults
from running import run, run_well

KILLS = int(os.environ.get("TIESHARD_KILLS", 20))
LAST = 12  # operations, which publish
VERBS = {"reshard": ["--ranks", 3], "export": [], "merge": []}
SAVES = {"in-turn": [], "in-background": ["--async-save", "wait"]}
FAILURES = {"write": "enospc", "allocate": "enospc", "make": "enospc", "sync": "eio", "rename": "eio", "remove": "eio"}
SAID = {"enospc": "No space left on device", "eio": "Input/output error"}


@pytest.fixture
def faults(tmp_path):
    return Faults(tmp_path)


@pytest.fixture(scope="module")
def saving(tieshard, tiny, tmp_path_factory):
    return SavingRun(tieshard, tiny, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def unharmed(saving, tmp_path_factory):
    """A run with all of its checkpoints."""
    out = tmp_path_factory.mktemp("unharmed") / "run"
    run_well(saving.command(out, keep=0))
    assert steps_of(out) == list(range(1, STEPS + 1))
    return out


@pytest.fixture(scope="module")
def operations(saving, tmp_path_factory):
    """operations(under, calls, *flags): how many file operations of a kind a run makes."""
    known = {}

    def count(under, calls="", flags=()):
        if (under, calls, flags) not in known:
            folder = tmp_path_factory.mktemp("count")
            faults = Faults(folder)
            run_well(saving.command(folder / "run", *flags), env=faults.environment("count", folder / under, calls=calls))
            known[under, calls, flags] = faults.counted()
        return known[under, calls, flags]

    return count


def assert_nothing_lost(out, unharmed):
    """Every checkpoint that has a name is whole, and right."""
    for step in steps_of(out):
        assert_whole(checkpoint(out, step), checkpoint(unharmed, step))


def assert_goes_on(saving, out, unharmed):
    resumed_from = steps_of(out)[-1:]
    saving.go_on(out)
    assert_same_end(out, unharmed)
    if resumed_from != [STEPS]: # it saved, and cleaned before
        assert hidden_in(out / "checkpoints") == []


@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("kill", range(KILLS))
def test_a_killed_run_goes_on_from_its_newest_checkpoint(saving, unharmed, operations, faults, tmp_path, kill, saves):
    """One rank or the whole job, at an operation chosen at random: while it saves, moves the pointer, prunes or exports."""
    flags = SAVES[saves]
    at = random.Random(f"{saves} {kill}").randint(1, int(0.95 * operations("run", flags=tuple(flags))))
    out = tmp_path / "run"
    killed = run(saving.command(out, *flags), env=faults.environment(("kill", "kill-all")[kill % 2], out, at))
    assert killed.returncode == (-signal.SIGKILL if kill % 2 else 128 + signal.SIGKILL), killed
    assert faults.counted() >= at
    assert_nothing_lost(out, unharmed)
    assert_goes_on(saving, out, unharmed)


@pytest.mark.parametrize("saves", SAVES)
@pytest.mark.parametrize("call", FAILURES)
def test_a_disk_that_fails_once_ends_a_run_with_what_was_saved(
        saving, unharmed, operations, faults, tmp_path, call, saves):
    flags = SAVES[saves]
    count = operations("run/checkpoints", call, tuple(flags))
    out = tmp_path / "run"
    env = faults.environment(FAILURES[call], out / "checkpoints", random.Random(call).randint(count // 2, count), call)
    failed = run(saving.command(out, *flags), env=env)
    assert failed.returncode == 4, failed
    assert SAID[FAILURES[call]] in failed.stderr, failed.stderr
    assert any(f"[{code}]" in failed.stderr for code in ("disk-full", "io-failed", "save-failed")), failed.stderr
    assert steps_of(out), "the fault was meant to come after the first checkpoint"
    assert_nothing_lost(out, unharmed)
    assert_goes_on(saving, out, unharmed)


@pytest.mark.parametrize("saves", SAVES)
def test_a_disk_that_stays_full_ends_a_run_with_what_was_saved(saving, unharmed, operations, faults, tmp_path, saves):
    calls, flags = "write,allocate,make", SAVES[saves]
    out = tmp_path / "run"
    at = operations("run/checkpoints", calls, tuple(flags)) // 2
    failed = run(saving.command(out, *flags), env=faults.environment("enospc", out / "checkpoints", at, calls, 0))
    assert failed.returncode == 4, failed
    assert SAID["enospc"] in failed.stderr, failed.stderr
    assert hidden_in(out / "checkpoints") == [], "what could not be finished takes room still"
    assert steps_of(out)
    assert_nothing_lost(out, unharmed)
    assert_goes_on(saving, out, unharmed)


@pytest.fixture
def damaged(unharmed, tmp_path):
    """A run whose newest checkpoint lacks a file, so that it is replaced by the run that goes on."""
    out = tmp_path / "run"
    shutil.copytree(unharmed, out)
    shutil.rmtree(out / "export")
    next(checkpoint(out, STEPS).glob("*.safetensors")).unlink()
    return out


def test_a_file_system_that_exchanges_no_names_can_be_saved_to(saving, unharmed, damaged, faults):
    env = faults.environment("einval", damaged, calls="exchange", length=0)
    run_well(saving.command(damaged, "--resume", keep=0), env=env)
    assert faults.counted() == 1
    assert_same_end(damaged, unharmed)
    assert_nothing_lost(damaged, unharmed)
    assert hidden_in(damaged / "checkpoints") == []


@pytest.mark.parametrize("back", range(0, 16, 2))
def test_a_run_killed_while_it_replaces_a_checkpoint_goes_on(saving, unharmed, damaged, faults, tmp_path, back):
    """At operations around the one that gives the new directory its name."""
    calls = "exchange,rename,sync,remove"
    copy = tmp_path / "copy"
    shutil.copytree(damaged, copy)
    run_well(saving.command(copy, "--resume", "--no-export", keep=0), env=faults.environment("count", copy, calls=calls))
    killed = run(saving.command(damaged, "--resume", "--no-export", keep=0),
                 env=faults.environment("kill-all", damaged, faults.counted() - back, calls))
    assert killed.returncode == -signal.SIGKILL, killed
    for step in range(1, STEPS):
        assert_whole(checkpoint(damaged, step), checkpoint(unharmed, step))
    assert_goes_on(saving, damaged, unharmed)


class OfflineJob:
    """A torch-free verb on the unharmed run's last checkpoint."""

    def __init__(self, tieshard, verb, source, folder):
        self.verb, self.source, self.out = verb, source, folder / "out"
        self.command = [tieshard, verb, source, self.out, *VERBS[verb]]
        self.faults = Faults(folder)

    def count(self):
        run_well(self.command, env=self.faults.environment("count", self.out.parent))
        assert hidden_in(self.out.parent) == []
        self.expected = self.result()
        shutil.rmtree(self.out)
        return self.faults.counted()

    def result(self):
        return sorted(path.name for path in self.out.iterdir()), tensors_of(self.out)

    def run_with(self, fault, at):
        return run(self.command, env=self.faults.environment(fault, self.out.parent, at))

    def assert_absent_or_whole_and_repeatable(self):
        if not self.out.exists():
            run_well(self.command)
        assert self.result() == self.expected
        assert hidden_in(self.out.parent) in ([], [".out.lock"])  # the last operation is to remove it: OUT is whole by then


@pytest.fixture(params=VERBS)
def job(request, tieshard, unharmed, tmp_path):
    return OfflineJob(tieshard, request.param, checkpoint(unharmed, STEPS), tmp_path)


def test_a_killed_job_leaves_its_output_absent_or_whole(job):
    operations = job.count()
    before = tensors_of(job.source)
    for at in sorted(random.Random(job.verb).sample(range(1, operations + 1), min(KILLS, operations))):
        killed = job.run_with("kill", at)
        assert killed.returncode == -signal.SIGKILL, killed
        job.assert_absent_or_whole_and_repeatable()
        shutil.rmtree(job.out)
    assert tensors_of(job.source) == before


@pytest.mark.parametrize("fault", SAID)
def test_a_job_whose_disk_fails_at_any_operation_says_so_and_leaves_nothing_half(job, fault):
    operations = job.count()
    chosen = random.Random(fault).sample(range(1, operations + 1), min(3 * KILLS, operations))
    for at in sorted({*chosen, *range(operations - LAST + 1, operations + 1)}):
        failed = job.run_with(fault, at)
        if at == operations:  # the lock of what is whole by then: it stays, and the next job takes it
            assert failed.returncode == 0 and hidden_in(job.out.parent) == [".out.lock"], (at, failed)
        else:
            assert failed.returncode == 4, (at, failed)
            assert SAID[fault] in failed.stderr, (at, failed.stderr)
        job.assert_absent_or_whole_and_repeatable()
        shutil.rmtree(job.out)
