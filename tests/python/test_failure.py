"""A rank that dies or throws ends the others within 30 seconds with its own message first; Ctrl-C leaves nothing."""

import os
import pathlib
import re
import shutil
import signal
import socket
import threading
import time

import numpy
import pytest
from namespaces import with_own_temporary_folders
from running import clean_environment, free_port, read_metrics, wait_for

VOCAB, SEQ, RANKS = 101, 16, 3
LONG = 60_000  # steps that no machine finishes within the test
LIMIT = 30  # seconds within which all ranks have to end


def train_command(model, folder, tokens, steps=LONG):
    if tokens is not None:
        tokens.astype("<u2").tofile(folder / "tokens.bin")
    return ["train", "--model", model, "--data", folder / "tokens.bin", "--out", folder / "run", "--steps", steps,
            "--lr", 1e-4, "--batch", 1, "--seq", SEQ, "--threads", 1, "--no-shuffle"]


def random_tokens(steps, ranks=RANKS):
    return numpy.random.default_rng(1).integers(0, VOCAB, steps * ranks * SEQ)


def stat_fields(pid):
    """Fields of /proc/PID/stat from the state on, or None when the process is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def session_members(session):
    """Pids of all live processes of a session: the launcher leads one, and whatever it starts belongs to it."""
    pids = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    fields = {pid: stat_fields(pid) for pid in pids}
    return [pid for pid, field in fields.items() if field and int(field[3]) == session and field[0] != "Z"]


def pid_of_rank(session, rank):
    """The launcher forks its ranks in their order."""
    started = {pid: int(fields[19]) for pid in session_members(session) if pid != session and (fields := stat_fields(pid))}
    return sorted(started, key=lambda pid: (started[pid], pid))[rank]


class Output:
    """Reads a process's streams as they come, so that no pipe fills up."""

    def __init__(self, process):
        self.lines = []
        streams = (process.stdout, process.stderr)
        self.threads = [threading.Thread(target=self.read, args=(stream,)) for stream in streams]
        for thread in self.threads:
            thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line)

    def text(self):
        for thread in self.threads:
            thread.join(timeout=5)
        return "".join(self.lines)


@pytest.fixture
def running(processes, tieshard, tiny, tmp_path):
    """A run on three ranks that has made its first steps: (launcher process, its output)."""
    command = [tieshard, *train_command(tiny, tmp_path, random_tokens(LONG)), "--ranks", RANKS]
    return first_steps(processes, command, tmp_path, clean_environment())


def ended(process):
    """Exit status; the launcher and everything in its session have to be gone within LIMIT seconds."""
    deadline = time.monotonic() + LIMIT
    status = process.wait(timeout=LIMIT)
    wait_for(lambda: not session_members(process.pid), max(1, deadline - time.monotonic()), "all processes are gone")
    return status


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_killed_rank_ends_the_others_and_is_named(running, rank):
    process, output = running
    os.kill(pid_of_rank(process.pid, rank), signal.SIGKILL)
    assert ended(process) not in (0, None)
    text = output.text()
    assert "rank-died" in text, text
    assert f"rank {rank}/{RANKS}" in text[:text.index("rank-died") + 400], text
    assert "signal 9" in text
    first = min((text.index(code) for code in ("rank-died", "collective-failed", "peer-failed") if code in text))
    assert first == text.index("rank-died"), f"the dead rank is not what is said first:\n{text}"


def first_steps(processes, command, folder, env):
    """A run of the launcher that has made its first steps: (launcher process, its output)."""
    process = processes(command, env=env)
    output = Output(process)
    wait_for(lambda: read_metrics(folder / "run") or process.poll() is not None, 60, "the first step")
    assert process.poll() is None, output.text()
    return process, output


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_stopped_rank_ends_the_others_with_rank_and_operation(processes, tieshard, tiny, tmp_path, backend):
    """Wherever it was stopped. Over shared memory the rank that did not come is named too; the launcher names it anyway."""
    timeout = 3
    command = [tieshard, *train_command(tiny, tmp_path, random_tokens(LONG)), "--ranks", RANKS, "--timeout", timeout]
    process, output = first_steps(processes, command, tmp_path, clean_environment(TIESHARD_BACKEND=backend))
    stopped = pid_of_rank(process.pid, 1)
    os.kill(stopped, signal.SIGSTOP)
    assert ended(process) == 4
    text = output.text()
    for rank in (0, 2):
        assert re.search(rf"rank {rank}/{RANKS}, (all_gather|reduce_scatter|all_reduce|barrier)", text), text
    if backend == "shm":
        assert f"rank 1 (process {stopped}) did not come within {timeout}000 ms" in text, text
    assert f"rank 1/{RANKS}, process {stopped}" in text, text  # of the launcher, which had to kill it


def test_ctrl_c_reaches_the_whole_group_and_leaves_nothing(running):
    process, output = running
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process) == 128 + signal.SIGINT
    assert "rank-died" not in output.text(), "an interrupt is no accident"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_launcher_alone_leaves_nothing(running, number):
    process, _ = running
    process.send_signal(number)
    assert ended(process) in (128 + number, -number)


def test_a_bad_token_of_one_rank_is_said_before_anything_else(processes, tieshard, tiny, tmp_path):
    """Token VOCAB + 5 stands in rank 1's batch of step 3, which only rank 1 reads."""
    tokens = random_tokens(8)
    tokens[(3 * RANKS + 1) * SEQ + 4] = VOCAB + 5
    command = [tieshard, *train_command(tiny, tmp_path, tokens, 8), "--ranks", RANKS]
    process = processes(command, env=clean_environment())
    output = Output(process)
    assert ended(process) == 2
    text = output.text()
    assert "token-out-of-range" in text, text
    assert str(VOCAB + 5) in text and str(VOCAB) in text
    for consequence in ("peer-failed", "collective-failed"):
        assert consequence not in text or text.index("token-out-of-range") < text.index(consequence), text
    assert not (tmp_path / "run" / "export").exists()


def two_ranks(processes, tieshard, models, folder):
    """Two ranks started by hand, each with its own --model directory; their outputs."""
    port = free_port()
    outputs = []
    command = train_command(models[0], folder, random_tokens(LONG, 2))
    for rank, model in enumerate(models):
        command[command.index("--model") + 1] = model
        process = processes([tieshard, *command], env=clean_environment(
            RANK=rank, WORLD_SIZE=2, LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
        outputs.append((process, Output(process)))
    return outputs


def test_a_shard_that_one_rank_cannot_read_ends_all_ranks(processes, tieshard, reference, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(reference / "llama_untied", broken)
    shard = sorted(broken.glob("model-*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size - 100)
    (_, healthy), (_, failing) = ranks = two_ranks(processes, tieshard, [reference / "llama_untied", broken], tmp_path)
    statuses = [ended(process) for process, _ in ranks]
    assert statuses[0] == 4, healthy.text()
    assert statuses[1] == 2, failing.text()
    assert shard.name in failing.text() and "truncated" in failing.text()
    assert "peer-failed" in healthy.text() and "rank 1" in healthy.text() and "truncated" in healthy.text()


def test_ranks_with_different_checkpoints_are_refused(processes, tieshard, reference, tmp_path):
    """Otherwise they would exchange bytes of different meaning."""
    models = [reference / "llama_tied", reference / "llama3_rope"]
    ranks = two_ranks(processes, tieshard, models, tmp_path)
    for process, output in ranks:
        assert ended(process) not in (0, None), output.text()


def test_a_peer_that_never_comes_is_reported_in_time(processes, tieshard, tiny, tmp_path):
    command = train_command(tiny, tmp_path, random_tokens(4, 2), 4)
    process = processes([tieshard, *command, "--timeout", 3], env=clean_environment(
        RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()))
    output = Output(process)
    assert ended(process) == 4
    assert "rendezvous-failed" in output.text()
    assert "waited up to 3 s for rank 1, which did not come" in output.text()


@pytest.mark.parametrize("backend", ["auto", "gloo"])
@pytest.mark.parametrize("missing", range(3))
def test_a_rank_that_never_comes_is_named_by_all_the_others(processes, tieshard, tiny, tmp_path, missing, backend):
    port = free_port()
    command = [tieshard, *train_command(tiny, tmp_path, random_tokens(4), 4), "--timeout", 3]
    started = [processes(command, env=clean_environment(
        RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TIESHARD_BACKEND=backend))
        for rank in range(3) if rank != missing]
    outputs = [Output(process) for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert ended(process) == 4
        assert "[rendezvous-failed]" in output.text() and f"for rank {missing}, which" in output.text(), output.text()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backend", ["auto", "gloo"])
@pytest.mark.parametrize("delay", [0.15, 0.3, 0.45])
def test_ranks_killed_while_they_connect_leave_no_file(processes, tieshard, tiny, tmp_path, delay, backend):
    """Rank 2 is killed somewhere between its start and the first steps; then, wherever they are, the others end or are
    ended. Their /tmp and /dev/shm are folders of this test's own."""
    private = with_own_temporary_folders(tmp_path)
    train_command(tiny, tmp_path, random_tokens(LONG))  # writes the tokens
    command = train_command(tiny, pathlib.Path("/mnt"), None)
    port = free_port()
    started = [processes([*private, tieshard, *command, "--timeout", 3], env=clean_environment(
        RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TIESHARD_BACKEND=backend))
        for rank in range(3)]
    outputs = [Output(process) for process in started]
    time.sleep(delay)
    started[2].kill()
    for process, output in zip(started[:2], outputs, strict=False):
        assert ended(process) == 4, output.text()
        assert re.search(r"\[(rendezvous|collective|peer)-failed\]", output.text()), output.text()
    for folder in ("tmp", "shm"):
        assert list((tmp_path / folder).iterdir()) == []


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("backend", ["auto", "gloo"])
@pytest.mark.parametrize("late", [True, False], ids=["stopped-before-it-connects", "stopped-while-it-waits"])
def test_a_stopped_rank_that_keeps_the_store_ends_the_others_while_they_connect(
        processes, tieshard, tiny, tmp_path, backend, late):
    """Rank 2 does not come, so that rank 1 asks the store again and again; rank 0 is stopped before or in the middle of
    that. A host that loses its network looks the same."""
    command = [tieshard, *train_command(tiny, tmp_path, random_tokens(4), 4), "--timeout", 4]
    port = free_port()

    def start(rank):
        process = processes(command, env=clean_environment(
            RANK=rank, WORLD_SIZE=3, LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TIESHARD_BACKEND=backend))
        return process, Output(process)

    first, said_by_first = start(0)
    wait_for(lambda: listens(port) or first.poll() is not None, 60, "the store of rank 0")
    assert first.poll() is None, said_by_first.text()
    if late:
        os.kill(first.pid, signal.SIGSTOP)
        process, output = start(1)
    else:
        process, output = start(1)
        time.sleep(2)
        os.kill(first.pid, signal.SIGSTOP)
    status = ended(process)
    first.kill()
    text = output.text()
    assert status == 4, text
    assert "[rendezvous-failed]" in text and "rank 1/3" in text, text
    assert "rank 0, which keeps the store where the ranks meet" in text, text
    assert late or re.search(r'in stage "\w+" of connecting', text), text
    assert "frame #" not in text, text


@pytest.mark.parametrize("delay", [0.15, 0.3, 0.45, 0.6])
def test_a_launcher_whose_first_rank_is_stopped_while_all_connect_ends(processes, tieshard, tiny, tmp_path, delay):
    command = [tieshard, *train_command(tiny, tmp_path, random_tokens(LONG)), "--ranks", RANKS, "--timeout", 3]
    process = processes(command, env=clean_environment())
    output = Output(process)
    wait_for(lambda: len(session_members(process.pid)) == 1 + RANKS, 60, "all ranks")
    time.sleep(delay)
    os.kill(pid_of_rank(process.pid, 0), signal.SIGSTOP)
    assert ended(process) not in (0, None), output.text()
    assert re.search(r"\[(rendezvous|collective|peer)-failed\]", output.text()), output.text()
