"""Tokens that two programs can make without sharing a file: both sides of a comparison train on the same numbers.

Token i of a rank's batch in a step is (i * 7919 + 13 * rank + 104729 * step) mod vocab, laid out row by row.
"""

import numpy


def batch_tokens(step, rank, count, vocab):
    """The `count` tokens (batch * sequence length) that `rank` trains on in `step`: int64 [count]."""
    return (numpy.arange(count, dtype=numpy.int64) * 7919 + 13 * rank + 104729 * step) % vocab


def write_token_file(path, steps, ranks, count, vocab):
    """The same as a raw token file: by step, then by rank, as `tieshard train --no-shuffle` reads it."""
    tokens = [batch_tokens(step, rank, count, vocab) for step in range(steps) for rank in range(ranks)]
    numpy.concatenate(tokens).astype("<u2" if vocab <= 1 << 16 else "<u4").tofile(path)
