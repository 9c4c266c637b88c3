"""tieshard.open, TieRegistry, ShardPlan, doctor, errors: the C++ objects as Python sees them, against safetensors and torch."""

import json
import pickle

import numpy
import pytest
import tieshard
import torch
from module_models import CONFIGS, on_meta
from safetensors.torch import load_file, save_file


@pytest.fixture
def every_dtype(tmp_path):
    """A file with a tensor of each dtype that torch can save."""
    generator = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 127, (6, 16), dtype=torch.uint8, generator=generator)
    names = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
             "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
    tensors = {name: raw.clone().view(getattr(torch, name)) for name in names}
    save_file({**tensors, "bool": raw > 60, "empty": torch.zeros(0, 4), "scalar": torch.tensor(2.5)}, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


def same_bits(first, second):
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(
        first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8))


def test_views_have_the_bits_that_safetensors_reads(every_dtype):
    checkpoint = tieshard.open(every_dtype)
    expected = load_file(every_dtype)
    assert sorted(checkpoint) == sorted(expected) and len(checkpoint) == len(expected)
    for name, tensor in expected.items():
        assert checkpoint[name].shape == tuple(tensor.shape)
        assert same_bits(checkpoint[name].torch(), tensor), name


def test_a_part_of_a_view_shares_its_memory_and_numpy_may_not_write_to_it(every_dtype):
    view = tieshard.open(every_dtype)["bfloat16"]
    part = view[2:5, ::3]
    assert same_bits(part.torch(), load_file(every_dtype)["bfloat16"][2:5, ::3])
    assert numpy.shares_memory(part.numpy(), view.numpy()) and view.numpy().dtype == numpy.uint16
    with pytest.raises(ValueError, match="read-only"):
        part.numpy()[0, 0] = 1


def test_writing_to_a_tensor_of_a_view_leaves_the_file_as_it_is(every_dtype):
    before = every_dtype.read_bytes()
    tieshard.open(every_dtype)["float32"].torch().zero_()
    assert every_dtype.read_bytes() == before


def test_numpy_reads_a_view_without_a_copy_and_by_dlpack(every_dtype):
    view = tieshard.open(every_dtype)["int32"]
    expected = load_file(every_dtype)["int32"].numpy()
    assert (numpy.asarray(view) == expected).all() and (numpy.from_dlpack(view) == expected).all()


def test_a_view_outlives_its_checkpoint(every_dtype):
    tensor = tieshard.open(every_dtype)["float64"].torch()
    assert same_bits(tensor, load_file(every_dtype)["float64"])


def test_a_directory_tells_its_config_tensors_and_ties(models):
    checkpoint = tieshard.open(models / "llama_tied")
    assert checkpoint.config == json.loads((models / "llama_tied" / "config.json").read_text())
    assert checkpoint.family == "llama" and "model.norm.weight" in checkpoint
    assert [group.names for group in checkpoint.ties] == [["model.embed_tokens.weight", "lm_head.weight"]]
    assert "llama" in repr(checkpoint) and "model.norm.weight" in checkpoint._repr_html_()
    with pytest.raises(KeyError):
        checkpoint["lm_head.weight"]


@pytest.mark.parametrize("name", CONFIGS)
def test_ties_of_a_module_are_the_tensors_that_it_has_under_two_names(models, name):
    model = on_meta(models / name, name)
    ties = tieshard.TieRegistry.of(model)
    by_object = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        by_object.setdefault(id(parameter), []).append(fqn)
    assert [group.names for group in ties.groups] == [names for names in by_object.values() if len(names) > 1]
    for group in ties:
        assert all(ties.canonical_of(alias.name) == group.canonical and ties.is_alias(alias.name) for alias in group.aliases)
        assert ties.aliases_of(group.canonical) == group.names[1:] and not ties.is_alias(group.canonical)
        assert all("module-identity" in alias.evidence[0] for alias in group.aliases)


def test_ties_of_t5_are_one_group_of_its_names(models):
    group, = tieshard.TieRegistry.of(on_meta(models / "t5", "t5"))
    assert group.names == ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    assert "shared.weight = " in repr(group) and "<table>" in tieshard.TieRegistry.of(on_meta(models / "t5", "t5"))._repr_html_()


def test_a_plan_cuts_as_torch_chunk_does_and_a_tie_on_its_last_dim(models):
    plan = tieshard.plan(models / "llama_tied", ranks=3, shard_dim="first")
    assert plan.find("lm_head.weight").name == "model.embed_tokens.weight" and plan.find("lm_head.weight").dim == 1
    shapes = [plan.local_shape("model.layers.0.mlp.up_proj.weight", rank)[0] for rank in range(3)]
    assert shapes == [len(part) for part in torch.arange(48).chunk(3)]
    assert sum(plan.local_numel(rank) for rank in range(3)) == plan.total_numel
    assert set(plan.units) == {"", "model.layers.0", "model.layers.1"}
    assert "3 ranks" in repr(plan) and "model.norm.weight" in plan._repr_html_()


def test_a_plan_of_a_module_has_its_parameters_each_once(models):
    model = on_meta(models / "opt", "opt")
    plan = tieshard.ShardPlan.build(model, 2, units=["model.decoder.layers.0"])
    assert [parameter.name for parameter in plan.parameters] == [name for name, _ in model.named_parameters()]
    assert plan.total_numel == sum(parameter.numel() for parameter in model.parameters())


def test_an_argument_that_cannot_be_is_refused_by_name(models):
    with pytest.raises(tieshard.UsageError) as caught:
        tieshard.plan(models / "llama_tied", ranks=2, shard_dim="middle")
    assert caught.value.code == "bad-flag" and caught.value.where == "shard_dim" and "middle" in caught.value.why
    with pytest.raises(tieshard.UsageError, match="tied-weight-on-vocab"):
        tieshard.plan(models / "llama_tied", ranks=2, dims={"lm_head.weight": 0})
    with pytest.raises(tieshard.UsageError, match="bad-flag"):
        tieshard.plan(models / "llama_tied", ranks=2).local_shape("model.norm.weight", 2)


def test_doctor_says_what_the_program_says(models, tmp_path):
    report = tieshard.doctor(models / "llama_tied", ranks=2)
    assert report and report.verdict == "ok" and report.family == "llama" and report.architecture == "LlamaForCausalLM"
    tensors = load_file(models / "llama_tied" / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((models / "llama_tied" / "config.json").read_bytes())
    broken = tieshard.doctor(tmp_path)
    assert not broken and broken.verdict == "refuse"
    assert [finding.code for finding in broken.findings if finding.level == "error"] == ["missing-parameter"]
    assert "missing-parameter" in repr(broken) and "missing-parameter" in broken._repr_html_()


def test_errors_mirror_the_kinds_and_have_their_parts(tmp_path):
    with pytest.raises(tieshard.InputError) as caught:
        tieshard.open(tmp_path / "absent")
    error = caught.value
    assert isinstance(error, ValueError) and isinstance(error, tieshard.Error) and not isinstance(error, tieshard.UsageError)
    assert error.code == "directory-not-found" and str(tmp_path / "absent") in error.where and error.fix
    assert str(error) == str(error.diagnostic) and "[directory-not-found]" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)


def test_a_guards_error_is_a_key_error_and_reads_like_the_others():
    diagnostic = tieshard.Diagnostic("tie-not-shared", what="two", where="a and b", why="c", fix="d")
    for kind, other in ((tieshard.errors.GuardError, KeyError), (tieshard.errors.SharedObjectError, AssertionError)):
        error = kind(diagnostic)
        assert isinstance(error, other) and isinstance(error, tieshard.UsageError)
        assert str(error) == str(diagnostic) and str(error).startswith("two [tie-not-shared]")
    with pytest.raises(tieshard.UsageError, match="no-such-code"):
        tieshard.Diagnostic("no-such-code", what="x")
