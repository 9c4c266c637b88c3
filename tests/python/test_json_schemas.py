"""What the verbs print with --json is what docs/schemas says, key by key."""

import json
import subprocess

import numpy
import pytest
from jsonschema import Draft202012Validator
from running import ROOT
from safetensors.numpy import load_file, save_file

SCHEMAS = {path.name.removesuffix(".schema.json"): json.loads(path.read_text())
           for path in sorted((ROOT / "docs" / "schemas").glob("*.schema.json"))}
CASES = ["llama_tied", "llama_untied", "llama_tied_bf16", "gpt2_tied", "t5_tied", "gpt_oss_mxfp4"]


def printed(status, *command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def check_output(verb, document):
    Draft202012Validator(SCHEMAS[verb]).validate(document)
    return document


def objects_of(schema):
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for part in schema.values():
            yield from objects_of(part)


@pytest.fixture
def two_copies(tiny, tmp_path):
    """The tiny model with a head stored beside its embedding, different in two elements."""
    tensors = load_file(tiny / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].copy()
    head[1, 3] += 0.5
    head[2, 0] += 0.25
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    return tmp_path


@pytest.fixture
def changed(tiny, tmp_path):
    """The tiny model with one other norm."""
    tensors = load_file(tiny / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + numpy.float32(1)
    folder = tmp_path / "changed"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((tiny / "config.json").read_bytes())
    return folder


def test_schemas_are_valid_and_name_all_keys():
    assert set(SCHEMAS) == {"check", "diff", "doctor", "doctor-log", "inspect", "load", "plan", "ties"}
    for verb, schema in SCHEMAS.items():
        Draft202012Validator.check_schema(schema)
        for part in objects_of(schema):
            if isinstance(part.get("additionalProperties"), dict) or "description" in part:  # the file's own keys
                continue
            assert part["additionalProperties"] is False and part["required"], verb


@pytest.mark.parametrize("case", CASES)
def test_each_checkpoint_gives_what_the_schemas_say(tieshard, reference, case):
    folder = reference / case
    groups = check_output("ties", printed(0, tieshard, "ties", folder, "--json"))["groups"]
    expect = "tied" if groups else "untied"
    assert check_output("check", printed(0, tieshard, "check", folder, "--expect", expect, "--json"))["ok"]
    assert check_output("diff", printed(0, tieshard, "diff", folder, folder, "--json"))["same"]


@pytest.mark.parametrize("case", CASES)
def test_what_verbs_print_of_each_checkpoint_is_what_the_schemas_say(tieshard, reference, tmp_path, case):
    folder = reference / case
    check_output("inspect", printed(0, tieshard, "inspect", folder, "--json"))
    check_output("plan", printed(0, tieshard, "plan", folder, "--ranks", 3, "--json"))
    check_output("plan", printed(0, tieshard, "plan", folder, "--ranks", 5, "--replicas", 2, "--compare", "--bandwidth", "25GB/s", "--device-memory", "1MiB", "--json"))
    check_output("doctor", printed(0, tieshard, "doctor", folder, "--ranks", 3, "--json"))
    check_output("doctor", printed(0, tieshard, "doctor", folder, "--try", "--json"))
    check_output("doctor", printed(2, tieshard, "doctor", tmp_path, "--json"))
    check_output("load", printed(0, tieshard, "load", folder, "--ranks", 2, "--values", 2, "--json"))
    check_output("doctor-log", printed(2, tieshard, "doctor", folder, "--log", ROOT / "tests" / "logs" / "torch_tie_in_two_groups.log", "--json"))


def test_a_file_alone_and_values_that_are_initialised_have_their_schema_too(tieshard, tiny, tmp_path):
    tensors = load_file(tiny / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    for verb in ("inspect", "ties"):
        check_output(verb, printed(0, tieshard, verb, tmp_path / "model.safetensors", "--json"))
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    check_output("load", printed(0, tieshard, "load", tmp_path, "--ranks", 2, "--init", "model.norm.weight=ones", "--json"))
    check_output("plan", printed(0, tieshard, "plan", tmp_path, "--ranks", 2, "--init", "model.norm.weight=ones", "--json"))
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    check_output("doctor-log", printed(0, tieshard, "doctor", "--log", tmp_path / "train.log", "--json"))


def test_findings_and_differences_have_their_schema_too(tieshard, tiny, two_copies, changed):
    assert check_output("ties", printed(0, tieshard, "ties", two_copies, "--json"))["findings"]
    assert not check_output("check", printed(1, tieshard, "check", two_copies, "--expect", "tied", "--json"))["ok"]
    one = check_output("diff", printed(1, tieshard, "diff", tiny, changed, "--json"))["differences"][0]
    assert (one["name"], one["first_index"]) == ("model.norm.weight", 0)
    check_output("diff", printed(1, tieshard, "diff", tiny, two_copies, "--json"))


def test_a_key_more_or_less_is_refused(tieshard, tiny):
    document = printed(0, tieshard, "ties", tiny, "--json")
    valid = Draft202012Validator(SCHEMAS["ties"]).is_valid
    assert valid(document) and not valid(document | {"more": 1})
    for key in document:
        assert not valid({name: value for name, value in document.items() if name != key})
