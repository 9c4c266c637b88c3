"""What tieshard writes opens in the safetensors library, and what it reads are the bytes that the library reads."""

import json

import numpy
import pytest
import torch
from running import run_well
from safetensors import safe_open
from safetensors.torch import load_file

CASES = ["llama_tied", "llama_tied_bf16", "llama_untied", "llama_tied_v4config", "llama3_rope"]


def stored(folder):
    """All tensors of a checkpoint, as the safetensors library reads them; a name may stand in one file only."""
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        part = load_file(file)
        assert not tensors.keys() & part.keys()
        tensors |= part
    return tensors


@pytest.fixture(scope="module")
def export(tieshard, reference, tmp_path_factory):
    """Exports a reference case after steps at a learning rate of 0: nothing may change."""

    def make(case, ranks):
        folder = tmp_path_factory.mktemp(case)
        numpy.arange(2 * ranks * 16, dtype="<u2").tofile(folder / "tokens.bin")
        run_well([tieshard, "train", "--model", reference / case, "--data", folder / "tokens.bin",
                  "--out", folder / "run", "--ranks", ranks, "--steps", 2, "--lr", 0, "--weight-decay", 0,
                  "--batch", 1, "--seq", 8, "--no-shuffle"])
        return folder / "run" / "export"

    return make


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_an_export_holds_the_source_names_dtypes_and_bytes(export, reference, case, ranks):
    source, written = stored(reference / case), stored(export(case, ranks))
    assert written.keys() == source.keys()
    for name, value in source.items():
        assert written[name].dtype == value.dtype, name
        assert torch.equal(written[name], value), name


def test_an_export_says_that_it_is_in_torch_layout(export):
    """transformers refuses a file whose metadata lacks format: pt."""
    for file in export("llama_tied", 2).glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            assert tensors.metadata()["format"] == "pt"


def test_an_index_of_an_export_lists_what_the_files_hold(export):
    folder = export("llama_untied", 2)
    index = folder / "model.safetensors.index.json"
    files = {file.name for file in folder.glob("model*.safetensors")}
    if not index.exists():
        assert files == {"model.safetensors"}
        return
    weight_map = json.loads(index.read_text())["weight_map"]
    assert set(weight_map.values()) == files
    for file in files:
        with safe_open(folder / file, framework="pt") as tensors:
            assert set(tensors.keys()) == {name for name, place in weight_map.items() if place == file}


def test_the_source_checkpoint_is_left_as_it_was(export, reference):
    before = {file.name: file.read_bytes() for file in (reference / "llama_tied").iterdir()}
    export("llama_tied", 2)
    assert {file.name: file.read_bytes() for file in (reference / "llama_tied").iterdir()} == before
