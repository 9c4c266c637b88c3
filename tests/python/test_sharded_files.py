"""Sharded safetensors both ways with torch.distributed.checkpoint: what its writer leaves is merged and resharded here, what
is resharded here its reader loads, and what its reader would load wrongly without a word is refused."""

import json
import shutil
import struct
import sys

import pytest
import torch
from running import ROOT, clean_environment, run, run_well
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def torchrun(ranks, script, *arguments):
    run_well([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", 0,
              "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", ROOT / "tests" / "python" / script, *arguments],
             env=clean_environment())


def dcp_file(rank):
    return f"shard-{rank:05}-model-00001-of-00001.safetensors"


def write_blocks(path, blocks, **strings):
    """A file as DCP lays it out: {name: (tensor, offsets)}."""
    info = {name: {"saved_offsets": list(offsets)} for name, (_, offsets) in blocks.items()}
    save_file({name: tensor.contiguous() for name, (tensor, _) in blocks.items()}, path,
              metadata={"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt", **strings})


def rows(directory, tensor, *bounds):
    """The rows of "w" between these bounds, a file each."""
    directory.mkdir(exist_ok=True)
    for rank, (begin, end) in enumerate(zip(bounds, bounds[1:]), 1):
        write_blocks(directory / dcp_file(rank), {"w": (tensor[begin:end], [begin, 0])})


def tensors_of(directory):
    return {name: tensor for path in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def assert_equal_tensors(one, other):
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def refused(command, code):
    done = run(command)
    assert done.returncode == 2 and f"[{code}]" in done.stderr, done.stderr
    return done.stderr


@pytest.fixture(scope="module", params=[2, 3])
def fsdp2_save(request, tiny, tmp_path_factory):
    """The tied tiny Llama as FSDP2 ranks of PyTorch save it."""
    out = tmp_path_factory.mktemp(f"fsdp2-{request.param}") / "save"
    torchrun(request.param, "dcp_writer.py", tiny, out, "fsdp2")
    return out


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    out = tmp_path_factory.mktemp("grid") / "save"
    torchrun(4, "dcp_writer.py", "-", out, "grid")
    return out


def test_what_fsdp2_ranks_saved_is_merged_into_a_model_that_transformers_loads(tieshard, tiny, fsdp2_save, tmp_path):
    run_well([tieshard, "merge", fsdp2_save, tmp_path / "model", "--config-from", tiny])
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    assert model.lm_head.weight is model.model.embed_tokens.weight
    expected = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    assert_equal_tensors(dict(model.named_parameters()), dict(expected.named_parameters()))


def test_a_model_of_several_files_has_an_index_that_transformers_follows(tieshard, tiny, fsdp2_save, tmp_path):
    done = run_well([tieshard, "export", fsdp2_save, tmp_path / "model", "--config-from", tiny, "--max-shard-size", "30KiB",
                     "--dtype", "bfloat16", "--json"])
    assert len(json.loads(done.stdout)["files"]) > 2
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info.values()), info
    assert model.dtype == torch.bfloat16
    expected = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    assert_equal_tensors(dict(model.named_parameters()), dict(expected.named_parameters()))


def test_a_grid_of_blocks_is_put_together(tieshard, grid, tmp_path):
    done = run_well([tieshard, "merge", grid, tmp_path / "merged"])
    assert "config-missing" in done.stderr
    assert_equal_tensors(tensors_of(tmp_path / "merged"),
                         {"w": torch.arange(48.0).reshape(6, 8), "columns": torch.arange(28.0).reshape(4, 7),
                          "whole": torch.arange(5.0).to(torch.bfloat16), "one": torch.tensor(7)})


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_lost_file_of_a_grid_is_refused_whichever_it_is(tieshard, grid, tmp_path, rank):
    lost = tmp_path / "lost"
    shutil.copytree(grid, lost)
    (lost / dcp_file(rank)).unlink()
    out = tmp_path / "merged"
    done = run([tieshard, "merge", lost, out])
    if rank == 4:  # DCP states no whole shape: of w the rows and columns that are left tell, of "columns" nothing does
        assert done.returncode == 2 and "[block-missing]" in done.stderr and "[3, 4]" in done.stderr, done.stderr
    else:
        assert done.returncode == 2 and "[block-missing]" in done.stderr, done.stderr
    assert not out.exists()


def test_holes_overlaps_and_the_rest_of_an_older_save_are_refused(tieshard, tmp_path):
    new, old = torch.arange(32.0).reshape(8, 4), -torch.arange(32.0).reshape(8, 4)
    hole = tmp_path / "hole"
    rows(hole, new, 0, 2, 4, 8)
    (hole / dcp_file(2)).unlink()
    assert "[2, 0]" in refused([tieshard, "merge", hole, tmp_path / "out"], "block-missing")
    first = tmp_path / "first"
    rows(first, new, 0, 4, 8)
    (first / dcp_file(1)).unlink()
    assert "[0, 0]" in refused([tieshard, "merge", first, tmp_path / "out"], "block-missing")
    stale = tmp_path / "stale"
    rows(stale, old, 0, 2, 4, 6, 8)
    rows(stale, new, 0, 4, 8)
    said = refused([tieshard, "merge", stale, tmp_path / "out"], "block-overlap")
    assert "w" in said and "shard-0000" in said
    twice = tmp_path / "twice"
    rows(twice, new, 0, 8)
    shutil.copy(twice / dcp_file(1), twice / "copy.safetensors")
    refused([tieshard, "merge", twice, tmp_path / "out"], "block-overlap")
    cut = tmp_path / "cut"
    rows(cut, new, 0, 4, 8)
    (cut / dcp_file(2)).write_bytes((cut / dcp_file(2)).read_bytes()[:-4])
    refused([tieshard, "reshard", cut, tmp_path / "out", "--ranks", 2], "truncated")
    dtypes = tmp_path / "dtypes"
    rows(dtypes, new, 0, 4, 8)
    write_blocks(dtypes / dcp_file(2), {"w": (new[4:].to(torch.bfloat16), [4, 0])})
    refused([tieshard, "merge", dtypes, tmp_path / "out"], "tie-dtype-differs")
    assert not (tmp_path / "out").exists()


def test_a_lost_last_file_of_an_fsdp2_save_is_told_by_the_config(tieshard, tiny, fsdp2_save, tmp_path):
    lost = tmp_path / "lost"
    shutil.copytree(fsdp2_save, lost)
    sorted(lost.glob("*.safetensors"))[-1].unlink()
    refused([tieshard, "export", lost, tmp_path / "out", "--config-from", tiny], "shape-mismatch")


def test_metadata_ties_of_files_that_pytorch_saved_are_no_error(tieshard, tmp_path):
    directory = tmp_path / "plain"
    directory.mkdir()
    save_file({"model.embed_tokens.weight": torch.arange(6.0).reshape(3, 2)}, directory / "model.safetensors",
              metadata={"format": "pt", "lm_head.weight": "model.embed_tokens.weight"})
    run_well([tieshard, "merge", directory, tmp_path / "out"])
    assert_equal_tensors(tensors_of(tmp_path / "out"), tensors_of(directory))


def various(directory):
    """Tensors of every kind, in one plain file."""
    directory.mkdir()
    tensors = {"embed": torch.arange(33.0).reshape(11, 3), "cube": torch.arange(60.0).reshape(3, 4, 5).to(torch.float16),
               "narrow": torch.arange(2.0), "none": torch.empty(0, 4), "one": torch.tensor(7.5),
               "count": torch.tensor([1, 2, 3]), "flags": torch.tensor([[True, False], [False, True]])}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("dim", ["first", "last"])
def test_resharding_any_number_of_ranks_to_any_other_and_back_changes_no_bit(tieshard, tmp_path, dim):
    tensors = various(tmp_path / "plain")
    for before in range(1, 5):
        run_well([tieshard, "reshard", tmp_path / "plain", tmp_path / f"{before}", "--ranks", before, "--shard-dim", dim])
    for before in range(1, 5):
        for after in range(1, 5):
            there, back = tmp_path / f"{before}-{after}", tmp_path / f"{before}-{after}-{before}"
            run_well([tieshard, "reshard", tmp_path / f"{before}", there, "--ranks", after, "--shard-dim", dim])
            run_well([tieshard, "reshard", there, back, "--ranks", before, "--shard-dim", dim])
            for one, other in ((there, tmp_path / f"{after}"), (back, tmp_path / f"{before}")):
                assert [path.name for path in sorted(one.iterdir())] == [path.name for path in sorted(other.iterdir())]
                for path in one.iterdir():
                    assert path.read_bytes() == (other / path.name).read_bytes(), path
    run_well([tieshard, "merge", tmp_path / "4-3", tmp_path / "merged"])
    assert_equal_tensors(tensors_of(tmp_path / "merged"), tensors)


@pytest.mark.parametrize("readers", [1, 3, 4])
def test_pytorchs_reader_loads_what_is_resharded_here(tieshard, tmp_path, readers):
    tensors = various(tmp_path / "plain")
    asked = {name: tensor for name, tensor in tensors.items() if name != "none"}
    run_well([tieshard, "reshard", tmp_path / "plain", tmp_path / "sharded", "--ranks", 3])
    names = {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in asked.items()}
    (tmp_path / "names.json").write_text(json.dumps(names))
    torchrun(readers, "dcp_reader.py", tmp_path / "sharded", tmp_path / "names.json", tmp_path / "read.safetensors")
    assert_equal_tensors(load_file(tmp_path / "read.safetensors"), asked)


def test_files_that_are_resharded_open_in_the_safetensors_library(tieshard, tmp_path):
    various(tmp_path / "plain")
    run_well([tieshard, "reshard", tmp_path / "plain", tmp_path / "sharded", "--ranks", 2])
    with safe_open(tmp_path / "sharded" / dcp_file(2), framework="pt") as file:
        info = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        assert info["embed"] == {"saved_offsets": [0, 2], "shape": [11, 3]}
        assert "one" not in info
        assert file.get_tensor("embed").shape == (11, 1)
    header = (tmp_path / "sharded" / dcp_file(2)).read_bytes()
    assert struct.unpack("<Q", header[:8])[0] % 8 == 0
