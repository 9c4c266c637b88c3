"""Ranks on two hosts (two network namespaces of one kernel): shared memory inside, Gloo between; and what ends a run."""

import os
import signal
import time

import numpy
import pytest
from namespaces import FIRST, TwoHosts, in_container
from running import clean_environment, free_port, read_metrics, run_well, wait_for

STEPS, SEQ, RANKS = 4, 16, 4
LONG = 60_000  # steps that no machine finishes within the test
TIMEOUT = 5  # seconds that a rank waits for another one
BOUND = 2e-5  # of a loss near 4.6: sums over other groups of ranks round otherwise


@pytest.fixture
def hosts():
    two = TwoHosts()
    yield two
    two.end()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    numpy.random.default_rng(7).integers(0, 101, STEPS * RANKS * SEQ).astype("<u2").tofile(path)
    return path


@pytest.fixture(scope="module")
def train(tieshard, tiny, tokens):
    def command(out, *more, steps=STEPS):
        return [tieshard, "train", "--model", tiny, "--data", tokens, "--out", out, "--lr", 1e-3, "--batch", 1, "--seq", SEQ,
                "--threads", 1, "--no-shuffle", "--steps", steps, *more]

    return command


def losses(out):
    return [line["loss"] for line in read_metrics(out)]


@pytest.fixture(scope="module")
def expected(train, tmp_path_factory):
    """Losses of four ranks on one host."""
    out = tmp_path_factory.mktemp("one-host") / "run"
    done = run_well([*train(out), "--ranks", RANKS], timeout=120, env=clean_environment())
    assert "shared memory" not in done.stderr, done.stderr
    return losses(out)


def rank_environment(rank, address, port):
    return clean_environment(RANK=rank, WORLD_SIZE=RANKS, LOCAL_RANK=rank % 2, MASTER_ADDR=address, MASTER_PORT=port)


def start_on(hosts, processes, command):
    """Two ranks on each host, as torchrun numbers them."""
    port = free_port()
    return [processes([*hosts.on(rank // 2), *command], env=rank_environment(rank, FIRST, port)) for rank in range(RANKS)]


def said_by(ranks, timeout=120):
    """(exit status, stdout, stderr) of each."""
    return [(rank.returncode, *streams) for rank in ranks for streams in [rank.communicate(timeout=timeout)]]


def test_one_axis_over_two_hosts_goes_over_gloo_and_says_why(hosts, processes, train, expected, tmp_path):
    ranks = said_by(start_on(hosts, processes, train(tmp_path / "run")))
    assert [status for status, _, _ in ranks] == [0] * RANKS, ranks
    note = "ranks exchange over gloo, not shared memory: rank 2 is in another network namespace than rank 0"
    assert note in ranks[0][2], ranks[0]
    assert losses(tmp_path / "run") == pytest.approx(expected, abs=BOUND)


def test_hsdp_shares_memory_inside_each_host_and_uses_gloo_between_them(hosts, processes, train, expected, tmp_path):
    ranks = said_by(start_on(hosts, processes, train(tmp_path / "run", "--replicas", 2)))
    assert [status for status, _, _ in ranks] == [0] * RANKS, ranks
    assert "dp_replicate 2 over gloo x dp_shard 2 over shm" in ranks[0][1], ranks[0]
    assert "dp_replicate exchanges over gloo, not shared memory: rank 2 is in another" in ranks[0][2], ranks[0]
    assert losses(tmp_path / "run") == pytest.approx(expected, abs=BOUND)


def running_on(hosts, processes, train, out, *more):
    """Four ranks that have made their first steps."""
    ranks = start_on(hosts, processes, train(out, "--timeout", TIMEOUT, *more, steps=LONG))
    wait_for(lambda: read_metrics(out) or any(rank.poll() is not None for rank in ranks), 60, "the first step")
    assert all(rank.poll() is None for rank in ranks), said_by(ranks)
    return ranks


def expect_peer_errors(ranks, started):
    """Every rank ends with status 4 and a message that says where it waited, and none waits longer than it has to."""
    for number, (status, out, errors) in enumerate(said_by(ranks, timeout=4 * TIMEOUT)):
        assert status == 4, (number, out, errors)
        assert "collective-failed" in errors and "rank " in errors, errors
    assert time.monotonic() - started < 4 * TIMEOUT


@pytest.mark.parametrize("layout", [[], ["--replicas", 2]], ids=["one axis", "hsdp"])
def test_a_killed_rank_ends_the_ranks_of_both_hosts(hosts, processes, train, tmp_path, layout):
    ranks = running_on(hosts, processes, train, tmp_path / "run", *layout)
    started = time.monotonic()
    os.kill(ranks[3].pid, signal.SIGKILL)
    expect_peer_errors(ranks[:3], started)


@pytest.mark.parametrize("layout", [[], ["--replicas", 2]], ids=["one axis", "hsdp"])
def test_an_unplugged_cable_ends_every_rank(hosts, processes, train, tmp_path, layout):
    ranks = running_on(hosts, processes, train, tmp_path / "run", *layout)
    started = time.monotonic()
    hosts.unplug()
    expect_peer_errors(ranks, started)


def test_containers_of_one_host_use_gloo(processes, train, tmp_path):
    """They see neither each other's processes nor, so, each other's memory."""
    port = free_port()
    command = [*in_container(), *train(tmp_path / "run")]
    ranks = said_by([processes(command, env=rank_environment(rank, "127.0.0.1", port)) for rank in range(RANKS)])
    assert [status for status, _, _ in ranks] == [0] * RANKS, ranks
    assert "over gloo, not shared memory: rank 1 is in another container" in ranks[0][2], ranks[0]
