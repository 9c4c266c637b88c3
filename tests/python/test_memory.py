"""Loading stays within a rank's shards and a read buffer: no rank ever holds a whole large tensor."""

import json
import sys

import numpy
import pytest
from running import BUILD, ROOT, run_well
from safetensors import safe_open

RANKS = 4
SLACK_MIB = 128  # read buffers and whatever else loading allocates, at most


@pytest.fixture(scope="module")
def wide():
    """A tied Llama whose embedding, 250.5 MiB in BF16, is far larger than a rank's share of the model."""
    model = BUILD / "llama-wide"
    run_well([sys.executable, ROOT / "tools" / "make_llama.py", model, "--layers", 1, "--hidden", 1024])
    return model


def stored_mib(model):
    total, largest = 0, 0
    for file in model.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            sizes = [2 * numpy.prod(tensors.get_slice(name).get_shape()) / 2**20 for name in tensors.keys()]
        total, largest = total + sum(sizes), max(largest, *sizes)
    return total, largest


@pytest.mark.parametrize("shard_dim", ["last", "first"])
def test_the_peak_of_loading_is_the_shard_and_a_buffer(tieshard, wide, tmp_path, shard_dim):
    numpy.zeros(64, dtype="<u4").tofile(tmp_path / "tokens.bin")
    run_well([tieshard, "train", "--model", wide, "--data", tmp_path / "tokens.bin", "--data-dtype", "uint32",
              "--out", tmp_path / "run", "--ranks", RANKS, "--steps", 0, "--seq", 16, "--param-dtype", "bfloat16",
              "--shard-dim", shard_dim])
    total, largest = stored_mib(wide)
    bound = 1.05 * total / RANKS + SLACK_MIB
    assert bound < largest, "the bound would let a whole tensor through"
    for rank in json.loads((tmp_path / "run" / "summary.json").read_text())["ranks"]:
        growth = rank["rss_after_load_mib"] - rank["rss_before_load_mib"]
        assert total / RANKS < growth <= bound, rank
