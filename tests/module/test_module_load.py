"""tieshard.load into plain modules: values bit for bit those of transformers and safetensors, from meta and in place."""

import dataclasses
import gc
import shutil

import pytest
import tieshard
import torch
from module_models import CONFIGS, class_of, config_of, on_meta
from safetensors.torch import load_file, save_file


def state_of(model):
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def assert_same_state(model, expected):
    ours, theirs = state_of(model), state_of(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert not ours[name].is_meta, name
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name


def logits(model):
    ids = torch.arange(1, 13).reshape(1, 12)
    more = {"decoder_input_ids": ids} if model.config.model_type == "t5" else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **more).logits


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


def test_a_module_from_meta_is_the_one_that_transformers_loads(models, name):
    expected = class_of(name).from_pretrained(models / name)
    model = on_meta(models / name, name)
    objects = dict(model.named_parameters(remove_duplicate=False))
    ledger = tieshard.load(model, models / name)
    assert_same_state(model, expected)
    assert dict(model.named_parameters(remove_duplicate=False)).items() == objects.items() and all(
        parameter is objects[fqn] for fqn, parameter in model.named_parameters(remove_duplicate=False))
    assert not ledger.buffers_left and not any(buffer.is_meta for buffer in model.buffers())
    for buffer, theirs in zip(model.buffers(), expected.buffers(), strict=True):
        assert torch.equal(buffer, theirs)
    assert torch.equal(logits(model), logits(expected))
    assert not ledger.warnings and {entry.name for entry in ledger.entries} == {fqn for fqn, _ in model.named_parameters()}


def test_a_module_that_has_memory_is_overwritten_in_place(models, name):
    model = class_of(name).from_config(config_of(name))
    places = [parameter.data_ptr() for parameter in model.parameters()]
    tieshard.load(model, models / name)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert_same_state(model, class_of(name).from_pretrained(models / name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_are_converted_as_torch_does(models, dtype):
    model = on_meta(models / "llama_tied", "llama_tied", dtype)
    tieshard.load(model, models / "llama_tied")
    stored = load_file(models / "llama_tied" / "model.safetensors")
    for fqn, parameter in model.named_parameters():
        assert parameter.dtype == dtype and torch.equal(parameter, stored[fqn].to(dtype)), fqn


def test_large_parts_are_mapped_writable_and_the_file_stays_as_it_is(tmp_path):
    weight = torch.randn(512, 512)
    save_file({"weight": weight, "bias": torch.randn(512)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    before = (tmp_path / "model.safetensors").read_bytes()
    model = torch.nn.Linear(512, 512, device="meta")
    ledger = tieshard.load(model, tmp_path)
    assert ledger.find("weight").mapped and not ledger.find("bias").mapped and ledger.bytes_mapped == weight.nbytes
    gc.collect()
    torch.optim.SGD(model.parameters(), lr=0.1).step(lambda: model(torch.ones(1, 512)).sum().backward())
    assert not torch.equal(model.weight, weight) and (tmp_path / "model.safetensors").read_bytes() == before
    copied = torch.nn.Linear(512, 512, device="meta")
    assert tieshard.load(copied, tmp_path, mmap=False).bytes_mapped == 0 and torch.equal(copied.weight, weight)


def test_a_tie_that_to_empty_broke_is_mended(models):
    model = on_meta(models / "llama_tied", "llama_tied")
    model.to_empty(device="cpu")
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    ledger = tieshard.load(model, models / "llama_tied")
    assert model.lm_head.weight is model.model.embed_tokens.weight and ledger.mended == ["lm_head.weight"]
    assert_same_state(model, class_of("llama_tied").from_pretrained(models / "llama_tied"))


def test_untied_on_request_two_weights_have_the_bytes_of_one(models):
    model = on_meta(models / "llama_tied", "llama_tied")
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with pytest.raises(tieshard.InputError, match="missing-parameter"):
        tieshard.load(model, models / "llama_tied", untie=["lm_head.weight"])


def test_a_parameter_that_no_file_holds_is_refused_or_initialised_as_asked(models, tmp_path):
    shutil.copytree(models / "llama_untied", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    model = on_meta(tmp_path / "model", "llama_untied")
    with pytest.raises(tieshard.InputError) as caught:
        tieshard.load(model, tmp_path / "model")
    assert caught.value.code == "missing-parameter" and "lm_head.weight" in str(caught.value)
    ledger = tieshard.load(model, tmp_path / "model", init={"lm_head.weight": "ones"})
    assert (model.lm_head.weight == 1).all() and ledger.find("lm_head.weight").initialised


def test_stored_names_of_a_wrapper_are_recognised_and_said(models, tmp_path):
    stored = load_file(models / "opt" / "model.safetensors")
    save_file({f"module.{fqn}": tensor for fqn, tensor in stored.items()}, tmp_path / "model.safetensors")
    shutil.copy(models / "opt" / "config.json", tmp_path)
    model = on_meta(tmp_path, "opt")
    ledger = tieshard.load(model, tmp_path)
    assert [finding.code for finding in ledger.warnings] == ["wrapper-prefix"]
    assert torch.equal(model.model.decoder.layers[1].fc1.weight, stored["model.decoder.layers.1.fc1.weight"])


class WithBuffers(torch.nn.Module):
    """A module of the user's own: a persistent buffer, one that it can make, one that it cannot."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.table = torch.nn.Module()
        self.table.register_buffer("positions", torch.arange(4), persistent=False)
        self.register_buffer("odd", torch.tensor([1.5]), persistent=False)


def test_buffers_are_loaded_made_anew_or_named(tmp_path):
    whole = WithBuffers()
    whole.norm.running_mean.add_(torch.randn(4))
    whole.norm.num_batches_tracked.add_(9)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with torch.device("meta"):
        model = WithBuffers()
    model.table.reset_buffers = lambda: model.table.positions.copy_(torch.arange(4))
    ledger = tieshard.load(model, tmp_path)
    assert ledger.buffers_loaded == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert ledger.buffers_recomputed == ["table.positions"] and ledger.buffers_left == ["odd"]
    assert torch.equal(model.norm.running_mean, whole.norm.running_mean) and model.norm.num_batches_tracked == 9
    assert model.table.positions.tolist() == [0, 1, 2, 3] and not ledger.unused and not ledger.warnings
    assert "buffers left: odd" in repr(ledger) and "norm.weight" in ledger._repr_html_()


def test_a_value_that_is_not_finite_is_named_where_it_is(tmp_path):
    weight = torch.zeros(40, 30)
    weight[3, 7] = float("nan")
    save_file({"weight": weight, "bias": torch.zeros(40)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    warning, = tieshard.load(torch.nn.Linear(30, 40), tmp_path).warnings
    assert warning.code == "not-finite" and "[3, 7]" in str(warning)


def test_names_of_files_are_no_markup_in_a_notebook(tmp_path):
    save_file({"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "<script>": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    ledger = tieshard.load(torch.nn.Linear(2, 2), tmp_path)
    ledger.entries[0] = dataclasses.replace(ledger.entries[0], name="<b>", aliases=["x<y"])
    page = ledger._repr_html_()
    assert ledger.unused == ["<script>"] and "<script>" not in page and "&lt;script&gt;" in page
    assert "<td>&lt;b&gt;</td><td>x&lt;y</td>" in page
