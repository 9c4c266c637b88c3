"""Step by step, tieshard and PyTorch's FSDP2 compute the same losses from the same tokens."""

import pytest
from two_sides import run_peer, run_tieshard

JOB = {"steps": 3, "batch": 1, "seq": 64, "lr": 1e-4, "weight_decay": 0.01, "param_dtype": "float32", "threads": 1}


def test_the_losses_of_three_steps_agree_with_fsdp2(tieshard, smollm2):
    ours = run_tieshard(smollm2, 2, **JOB)["losses"]
    peers = run_peer(smollm2, 2, "slices", **JOB)["losses"]
    assert len(ours) == len(peers) == JOB["steps"]
    assert peers[-1] < peers[0] - 0.1, "the peer learns nothing: the comparison would not see an optimizer that is off"
    assert ours == pytest.approx(peers, abs=1e-4, rel=0)
