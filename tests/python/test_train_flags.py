"""What `tieshard train` takes of fully_shard: the same run in another way, and values that cannot be used."""

import numpy
import pytest
from running import ROOT, clean_environment, read_metrics, run, run_well

STEPS, SEQ, RANKS = 5, 16, 4
BOUND = 1e-5  # of a loss near 4.6: the same numbers added in another order (docs/fully_shard.md)


@pytest.fixture(scope="module")
def train(tieshard, tiny, tmp_path_factory):
    """Runs once for each set of flags; gives the lines of its metrics."""
    folder = tmp_path_factory.mktemp("train")
    numpy.random.default_rng(3).integers(0, 101, STEPS * RANKS * 2 * SEQ).astype("<u2").tofile(folder / "tokens.bin")
    lines = {}

    def metrics(*flags):
        if flags not in lines:
            out = folder / str(len(lines))
            run_well([tieshard, "train", "--model", tiny, "--data", folder / "tokens.bin", "--out", out, "--steps", STEPS,
                      "--lr", 1e-3, "--seq", SEQ, "--threads", 1, "--no-shuffle", "--no-export", *flags],
                     env=clean_environment(), timeout=120)
            lines[flags] = read_metrics(out)
        return lines[flags]

    return metrics


def losses(lines):
    return [line["loss"] for line in lines]


def test_accumulated_batches_are_the_larger_batch(train):
    large = train("--ranks", 2, "--batch", 4)
    accumulated = train("--ranks", 2, "--batch", 1, "--gradient-accumulation-steps", 4)
    assert losses(accumulated) == pytest.approx(losses(large), abs=BOUND)
    assert [line["tokens"] for line in accumulated] == [line["tokens"] for line in large] == [2 * 4 * SEQ] * STEPS


def test_replicas_train_as_one_axis(train):
    one_axis = train("--ranks", RANKS, "--batch", 2)
    for replicas in (2, 4):
        assert losses(train("--ranks", RANKS, "--batch", 2, "--replicas", replicas)) == pytest.approx(losses(one_axis), abs=BOUND)


@pytest.mark.parametrize("flags", [
    ["--activation-checkpointing"], ["--reshard-after-forward", "false"], ["--reshard-after-forward", "2"],
    ["--forward-prefetch", 1, "--backward-prefetch", 1]], ids=lambda flags: flags[0])
def test_what_only_trades_memory_for_time_changes_no_bit(train, flags):
    assert losses(train("--ranks", RANKS, "--batch", 2, *flags)) == losses(train("--ranks", RANKS, "--batch", 2))


REFUSED = [
    (["--replicas", 3], "--replicas", "expected a divisor of the 4 ranks, got 3"),
    (["--replicas", 0], "--replicas", "from 1 to 4096, got 0"),
    (["--reshard-after-forward", 3], "--reshard-after-forward", "a divisor of the 4 ranks that shard, got 3"),
    (["--replicas", 2, "--reshard-after-forward", 4], "--reshard-after-forward", "a divisor of the 2 ranks that shard, got 4"),
    (["--reshard-after-forward", "yes"], "--reshard-after-forward", "expected true, false or a divisor"),
    (["--reshard-after-forward", 0], "--reshard-after-forward", "got 0"),
    (["--gradient-accumulation-steps", 0], "--gradient-accumulation-steps", "from 1 to 1000000, got 0"),
    (["--forward-prefetch", -1], "--forward-prefetch", "got -1"),
    (["--backward-prefetch", "all"], "--backward-prefetch", "got all"),
    (["--seed", -1], "--seed", "expected a whole number from 0 to 9223372036854775807, got -1"),
    (["--steps", "1e3"], "--steps", "got 1e3"),
    (["--batch", 0], "--batch", "from 1 to 1000000, got 0"),
    (["--seq", 1], "--seq", "got 1"),
    (["--timeout", 0], "--timeout", "got 0"),
    (["--threads", "two"], "--threads", "got two"),
    (["--lr", -1], "--lr", "expected a finite number of at least 0, got -1"),
    (["--lr", "nan"], "--lr", "got nan"),
    (["--weight-decay", "inf"], "--weight-decay", "got inf"),
    (["--clip", 0], "--clip", "expected a number above 0, got 0"),
    (["--data-dtype", "int8"], "--data-dtype", "expected auto, uint16 or uint32, got int8"),
]


@pytest.mark.parametrize(("flags", "where", "why"), REFUSED, ids=[" ".join(map(str, flags)) for flags, _, _ in REFUSED])
def test_a_value_that_cannot_be_used_is_refused_before_anything_is_started(tieshard, tmp_path, flags, where, why):
    command = [tieshard, "train", "--model", "none", "--data", "none", "--out", tmp_path / "run", "--ranks", RANKS, *flags]
    done = run(command, env=clean_environment())
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("[bad-flag]") == 1 and f"where: {where}\n" in done.stderr and why in done.stderr, done.stderr
    assert "fix: " in done.stderr and not (tmp_path / "run").exists()


def test_help_and_the_document_name_the_same_flags(tieshard):
    shown = run_well([tieshard, "train", "--help"]).stdout
    document = (ROOT / "docs" / "fully_shard.md").read_text()
    for flag in ("--replicas", "--reshard-after-forward", "--gradient-accumulation-steps", "--activation-checkpointing",
                 "--forward-prefetch", "--backward-prefetch", "--compute-dtype", "--param-dtype"):
        assert f"\n  {flag} " in shown and f"`{flag}" in document, flag
