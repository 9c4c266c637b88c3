"""Runs that save, for tests: their flags, and what their checkpoints hold."""

import json

import numpy
from running import read_metrics, run_well
from safetensors import safe_open

STEPS, SEQ, RANKS = 4, 16, 2
VOCAB = 101


class SavingRun:
    """A small run on two ranks that saves after every step, always with the same numbers."""

    def __init__(self, tieshard, model, folder):
        self.tieshard, self.model, self.data = tieshard, model, folder / "tokens.bin"
        numpy.random.default_rng(7).integers(0, VOCAB, STEPS * RANKS * SEQ).astype("<u2").tofile(self.data)

    def command(self, out, *more, steps=STEPS, keep=2):
        return [self.tieshard, "train", "--model", self.model, "--data", self.data, "--out", out, "--ranks", RANKS,
                "--steps", steps, "--lr", 1e-3, "--batch", 1, "--seq", SEQ, "--threads", 1, "--no-shuffle",
                "--save-every", 1, "--keep", keep, *more]

    def go_on(self, out, *more):
        """The same run, on from what it has saved, to its end."""
        return run_well(self.command(out, "--resume", "--verify", *more))


def checkpoint(out, step):
    return out / "checkpoints" / f"step-{step:09}"


def steps_of(out):
    """Steps of the directories that have a checkpoint's name, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))


def hidden_in(directory):
    """What is there under a temporary name; a lock stays."""
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return [name for name in names if name.endswith(".tmp") or (name.startswith(".") and name != ".lock")]


def tensors_of(directory):
    """{(file, name): (dtype, shape, bytes)} of all safetensors files of a directory."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                tensors[path.name, name] = (tensor.dtype.str, tensor.shape, tensor.tobytes())
    return tensors


def assert_whole(directory, expected):
    """A checkpoint has all that its manifest names, and the tensors of `expected`, bit by bit."""
    files = {file["name"]: file["bytes"] for file in json.loads((directory / "manifest.json").read_text())["files"]}
    there = {path.name: path.stat().st_size for path in directory.iterdir() if path.name != "manifest.json"}
    assert there == files, directory
    assert tensors_of(directory) == tensors_of(expected), directory


def assert_same_end(out, expected):
    """Two runs have come to the same last checkpoint, export and losses."""
    assert steps_of(out)[-1] == STEPS
    assert_whole(checkpoint(out, STEPS), checkpoint(expected, STEPS))
    assert tensors_of(out / "export") == tensors_of(expected / "export")
    assert [line["loss"] for line in read_metrics(out)] == [line["loss"] for line in read_metrics(expected)]
