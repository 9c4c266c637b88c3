"""Ranks of one run that were started differently are refused together, before anything is loaded; and what is wrong with
a run's start is all that stands on stderr."""

import pytest
from running import clean_environment, free_port, run
from test_failure import ended, Output, random_tokens, train_command


def start_all(processes, tieshard, command, flags_of):
    """A rank for each entry of flags_of, with those flags more; (process, output) of each."""
    port = free_port()
    started = [processes([tieshard, *command, *flags], env=clean_environment(
        RANK=rank, WORLD_SIZE=len(flags_of), LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
        for rank, flags in enumerate(flags_of)]
    return [(process, Output(process)) for process in started]


@pytest.mark.parametrize("flags", [
    ["--lr", 0.5], ["--weight-decay", 0.5], ["--clip", 0.1], ["--seed", 1], ["--batch", 2],
    ["--gradient-accumulation-steps", 2], ["--no-export"], ["--compute-dtype", "bfloat16"], ["--replicas", 2],
    ["--reshard-after-forward", "false"], ["--activation-checkpointing"], ["--shard-dim", "first"]],
    ids=lambda flags: flags[0])
def test_ranks_with_different_flags_are_refused_together(processes, tieshard, tiny, tmp_path, flags):
    command = train_command(tiny, tmp_path, random_tokens(16, 2), 4) + ["--timeout", 20]
    for flag in ("--lr", "--batch"):  # each rank's own, or the default
        place = command.index(flag)
        del command[place:place + 2]
    ranks = start_all(processes, tieshard, command, [[], flags])
    for rank, (process, output) in enumerate(ranks):
        assert ended(process) == 2, output.text()
        text = output.text()
        assert "[bad-environment]" in text and f"rank {rank}/2" in text, text
        assert f"{flags[0]} " in text and "on rank 0" in text and "on rank 1" in text, text
        assert "load " not in text, text
    assert not (tmp_path / "run").exists()


def test_an_output_directory_that_takes_no_files_is_refused_before_loading(tieshard, tiny, tmp_path):
    command = train_command(tiny, tmp_path, random_tokens(4, 2), 4)
    command[command.index("--out") + 1] = "/proc"
    done = run([tieshard, *command, "--ranks", 2], env=clean_environment())
    assert done.returncode == 2, done.stderr
    assert "[bad-flag]" in done.stderr and '--out "/proc"' in done.stderr and "No such file" in done.stderr, done.stderr
    assert "load " not in done.stdout


def test_a_world_of_no_ranks_is_refused_in_words(tieshard, tiny, tmp_path):
    command = train_command(tiny, tmp_path, random_tokens(4, 1), 4)
    done = run([tieshard, *command], env=clean_environment(RANK=0, WORLD_SIZE=0))
    assert done.returncode == 2, done.stderr
    assert "expected at least 1, got 0" in done.stderr and "WORLD_SIZE" in done.stderr, done.stderr


@pytest.mark.parametrize("address", ["nosuchhost.invalid", "127.0.0.1"], ids=["no-host", "nobody-listens"])
def test_where_nobody_keeps_the_store_our_message_is_all_that_is_said(tieshard, tiny, tmp_path, address):
    """c10d would write some 45 lines of stack traces before it."""
    command = train_command(tiny, tmp_path, random_tokens(4, 2), 4)
    done = run([tieshard, *command, "--timeout", 2], env=clean_environment(
        RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, MASTER_ADDR=address, MASTER_PORT=free_port()))
    assert done.returncode == 4, done.stderr
    lines = done.stderr.strip().splitlines()
    assert lines[0].endswith("[rendezvous-failed]"), done.stderr
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["where", "why", "fix"], done.stderr
    assert address in done.stderr


def test_who_asks_for_the_log_of_c10d_gets_it(tieshard, tiny, tmp_path):
    command = train_command(tiny, tmp_path, random_tokens(4, 2), 4)
    done = run([tieshard, *command, "--timeout", 2], env=clean_environment(
        RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), TORCH_CPP_LOG_LEVEL="WARNING"))
    assert "[c10d]" in done.stderr and "[rendezvous-failed]" in done.stderr, done.stderr
