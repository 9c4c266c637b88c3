"""The torch-free verbs from outside: JSON for machines, values as the safetensors library reads them, exit statuses."""

import json
import shutil
import time

import pytest
import torch
from running import run, run_well
from safetensors.torch import load_file, save_file

INPUT_ERROR, USAGE_ERROR = 2, 3  # docs/errors.md


def ties_of(tieshard, folder, *flags):
    return json.loads(run_well([tieshard, "ties", folder, "--json", *flags]).stdout)["groups"]


@pytest.mark.parametrize(
    "case", ["llama_tied", "llama_tied_bf16", "llama_tied_v4config", "llama_untied", "llama3_rope"])
def test_ties_are_those_that_transformers_makes(tieshard, reference, case):
    expected = json.loads((reference / case / "reference.json").read_text())["ties"]
    groups = ties_of(tieshard, reference / case)
    got = [{"canonical": g["canonical"], "aliases": [alias["name"] for alias in g["aliases"]]} for g in groups]
    assert got == expected
    assert all(alias["evidence"] for group in groups for alias in group["aliases"])


def test_a_tie_that_the_user_declares_joins_a_headless_checkpoint(tieshard, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert ties_of(tieshard, tmp_path / "model") == []
    (group,) = ties_of(tieshard, tmp_path / "model", "--tie", "lm_head.weight=model.embed_tokens.weight")
    assert group["canonical"] == "model.embed_tokens.weight"
    assert [alias["name"] for alias in group["aliases"]] == ["lm_head.weight"]


def test_ties_of_the_real_model(tieshard, smollm2):
    (group,) = ties_of(tieshard, smollm2)
    assert (group["canonical"], group["aliases"][0]["name"]) == ("model.embed_tokens.weight", "lm_head.weight")
    human = run_well([tieshard, "ties", smollm2]).stdout
    assert "model.embed_tokens.weight" in human and "= lm_head.weight" in human and "54.0 MiB" in human


def test_the_torch_free_verbs_start_in_milliseconds(tieshard, smollm2):
    """Half a second allows for a busy machine; a program that loads torch takes more than that."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        run_well([tieshard, "plan", smollm2, "--ranks", 8])
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.5


@pytest.mark.parametrize("case", ["llama_tied", "llama_tied_bf16", "llama_untied"])
def test_inspect_shows_the_values_that_safetensors_reads(tieshard, reference, case):
    folder = reference / case
    stored = {}
    for file in folder.glob("model*.safetensors"):
        stored |= load_file(file)
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"):
        shown = json.loads(run_well([tieshard, "inspect", folder, "--tensor", name, "--first", 11, "--json"]).stdout)
        assert shown["shape"] == list(stored[name].shape)
        assert shown["dtype"] == {torch.float32: "F32", torch.bfloat16: "BF16"}[stored[name].dtype]
        assert shown["values"] == stored[name].flatten()[:11].tolist()


def test_inspect_resolves_an_alias(tieshard, tiny):
    both = [json.loads(run_well([tieshard, "inspect", tiny, "--tensor", name, "--json"]).stdout)
            for name in ("lm_head.weight", "model.embed_tokens.weight")]
    assert both[0]["values"] == both[1]["values"]
    assert both[0]["canonical"] == "model.embed_tokens.weight"


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def cut_off(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-8])


def add_trailing_bytes(folder):
    with open(folder / "model.safetensors", "ab") as file:
        file.write(b"12345678")


def duplicate_key(folder):
    """A tensor's name twice in the header, which a lenient JSON parser swallows."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8:8 + length].decode()
    entry = header[header.index('"model.norm.weight"'):]
    entry = entry[:entry.index("}") + 1]
    header = header.rstrip(" ")[:-1] + "," + entry + "}"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + data[8 + length:])


def transposed_head(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].T.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def index_out_of_the_directory(folder):
    names = {name: "../model.safetensors" for name in load_file(folder / "model.safetensors")}
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def lose_a_norm(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


BROKEN = {
    "config-missing": lambda folder: (folder / "config.json").unlink(),
    "no-weights": lambda folder: (folder / "model.safetensors").unlink(),
    "json-duplicate-key": lambda folder: (folder / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}'),
    "truncated": cut_off,
    "trailing-bytes": add_trailing_bytes,
    "duplicate-key": duplicate_key,
    "tie-shape-mismatch": transposed_head,
    "path-escape": index_out_of_the_directory,
    "missing-parameter": lose_a_norm,
    "shape-mismatch": lambda folder: edit_config(folder, intermediate_size=78),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_checkpoint_is_refused_by_name(tieshard, tiny, tmp_path, code):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    BROKEN[code](folder)
    done = run([tieshard, "plan", folder, "--ranks", 2])
    assert done.returncode == INPUT_ERROR, done.stderr
    assert f"[{code}]" in done.stderr, done.stderr
    for part in ("where:", "why:", "fix:"):
        assert part in done.stderr
    assert done.stdout == "", "a refusal is no result"


def test_an_unknown_architecture_is_planned_by_its_names_with_a_warning(tieshard, tiny, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    edit_config(folder, model_type="perceptron", architectures=["Perceptron"])
    done = run_well([tieshard, "plan", folder, "--ranks", 2])
    assert "[unknown-architecture]" in done.stderr and "perceptron" in done.stderr


def test_both_shapes_of_a_transposed_head_are_named(tieshard, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    transposed_head(tmp_path / "model")
    message = run([tieshard, "plan", tmp_path / "model", "--ranks", 2]).stderr
    assert "[101, 48]" in message and "[48, 101]" in message and "lm_head.weight" in message


def test_sharding_a_tied_weight_on_its_vocab_dimension_is_refused(tieshard, tiny):
    done = run([tieshard, "plan", tiny, "--ranks", 2, "--dim", "lm_head.weight=0"])
    assert done.returncode in (INPUT_ERROR, USAGE_ERROR)
    assert "tied-weight-on-vocab" in done.stderr and "model.embed_tokens.weight" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["levitate"], ["plan"], ["ties", "--no-such-flag"], ["plan", "DIR", "--ranks", "0"]])
def test_a_bad_command_line_is_refused(tieshard, tiny, arguments):
    done = run([tieshard, *(tiny if word == "DIR" else word for word in arguments)])
    assert done.returncode in (INPUT_ERROR, USAGE_ERROR)
    assert done.stderr and not done.stdout


@pytest.mark.parametrize("verb", ["inspect", "ties", "plan", "merge-adapter", "reshard", "export", "merge", "train",
                                  "forward", "demo"])
def test_every_verb_has_help_with_an_example(tieshard, verb):
    shown = run_well([tieshard, verb, "--help"]).stdout
    assert f"tieshard {verb}" in shown and "Examples:" in shown
