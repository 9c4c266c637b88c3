"""Step by step, tieshard and PyTorch's FSDP2 compute the same losses from the same tokens."""

import sys

import pytest
from running import BUILD, ROOT, run_well
from two_sides import run_peer, run_tieshard

JOB = {"lr": 1e-4, "weight_decay": 0.01, "param_dtype": "float32", "threads": 1}

# float32: sums in another order differ by 1e-6 here. bfloat16 compute: a logit is rounded by up to 2**-9 of itself, and
# those of this model stay below 2, so a token's loss (logsumexp less one logit) is off by up to 2 * 2 * 2**-9 = 8e-3, the
# mean of 252 by much less; rounded gradients add to it from step to step. Either side is up to 1.5e-3 from its own float32
# losses, and they are 1e-3 from each other.
BOUNDS = {"float32": 1e-4, "bfloat16": 4e-3}


@pytest.fixture(scope="module")
def small():
    """A tied Llama of 4.4 million parameters, vocab 4,096, its weights at random."""
    model = BUILD / "llama-small"
    run_well([sys.executable, ROOT / "tools" / "make_llama.py", model, "--layers", 4, "--hidden", 256, "--vocab", 4096])
    return model


def losses_of_both(model, **job):
    job = {**JOB, **job}
    ours, peers = run_tieshard(model, 2, **job)["losses"], run_peer(model, 2, "slices", **job)["losses"]
    assert len(ours) == len(peers) == job["steps"]
    assert min(peers) < peers[0] - 0.1, "the peer learns nothing: the comparison would not see an optimizer that is off"
    return ours, peers


def test_the_losses_of_three_steps_agree_with_fsdp2(tieshard, smollm2):
    ours, peers = losses_of_both(smollm2, steps=3, batch=1, seq=64)
    assert ours == pytest.approx(peers, abs=1e-4, rel=0)


@pytest.mark.parametrize("compute", BOUNDS)
def test_the_losses_of_ten_steps_agree_with_fsdp2(tieshard, small, compute):
    ours, peers = losses_of_both(small, steps=10, batch=2, seq=64, lr=1e-3, compute_dtype=compute)
    assert ours == pytest.approx(peers, abs=BOUNDS[compute], rel=0)
