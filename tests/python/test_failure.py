"""A rank that dies or throws ends the others within 30 seconds with its own message first; Ctrl-C leaves nothing."""

import os
import pathlib
import shutil
import signal
import threading
import time

import numpy
import pytest
from running import clean_environment, free_port, read_metrics, wait_for

VOCAB, SEQ, RANKS = 101, 16, 3
LONG = 60_000  # steps that no machine finishes within the test
LIMIT = 30  # seconds within which all ranks have to end


def train_command(model, folder, tokens, steps=LONG):
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
    process = processes(command, env=clean_environment())
    output = Output(process)
    wait_for(lambda: read_metrics(tmp_path / "run") or process.poll() is not None, 60, "the first step")
    assert process.poll() is None, output.text()
    return process, output


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


def test_ctrl_c_reaches_the_whole_group_and_leaves_nothing(running):
    process, output = running
    os.killpg(process.pid, signal.SIGINT)
    assert ended(process) == 128 + signal.SIGINT
    assert "rank-died" not in output.text(), "an interrupt is no accident"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
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
