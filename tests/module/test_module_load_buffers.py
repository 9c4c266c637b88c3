"""What tieshard.load does with buffers: no parameter and no generator changes by them, each value has a place that fits it."""

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_ranks import run_on_ranks
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

TOWER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
TEXT = dict(TOWER, vocab_size=67, max_position_embeddings=16, bos_token_id=1, eos_token_id=2)
VISION = dict(TOWER, image_size=16, patch_size=8)
MODELS = {
    "clip": (CLIPModel, lambda: CLIPConfig(text_config=dict(TEXT, projection_dim=16), vision_config=dict(VISION, projection_dim=16),
                                           projection_dim=16)),
    "llava": (LlavaForConditionalGeneration, lambda: LlavaConfig(vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT),
                                                                 image_token_index=66)),
}


def stored(module, folder):
    """A folder with all that the module's state_dict has."""
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def built(make, device):
    with torch.device(device):
        return make()


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_beside_buffers_are_those_that_transformers_loads(tmp_path, name, device):
    kind, config = MODELS[name]
    torch.manual_seed(3)
    kind(config()).save_pretrained(tmp_path)
    expected = kind.from_pretrained(tmp_path)
    model = built(lambda: kind(config()), device)
    generator = torch.get_rng_state()
    ledger = tieshard.load(model, tmp_path)
    assert torch.equal(torch.get_rng_state(), generator) and not ledger.buffers_left
    for of in ("named_parameters", "named_buffers"):
        theirs = dict(getattr(expected, of)())
        assert theirs.keys() == dict(getattr(model, of)()).keys()
        for fqn, tensor in getattr(model, of)():
            assert torch.equal(tensor, theirs[fqn]), fqn
    assert not any(hasattr(parameter, "_is_hf_initialized") for parameter in model.parameters())


class Convolution(torch.nn.Module):
    """Its reset_parameters() initialises its child, its buffers and, by .data, what it should not."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool), persistent=False)
        self.register_buffer("of_weight", torch.zeros(4), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        self.linear.reset_parameters()
        self.linear.bias.data = torch.full((4,), 9.0, device=self.linear.bias.device)
        self.norm.reset_parameters()
        self.norm.weight = torch.nn.Parameter(torch.full_like(self.norm.weight, 9))
        with torch.no_grad():
            torch._foreach_mul_([self.norm.bias, self.scale], 0)
        torch.randn(4, out=self.scale).fill_(2)
        self.mask.fill_(False)
        self.of_weight.copy_(self.linear.weight.detach().sum(0))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_module_that_initialises_its_children_makes_its_buffers_only(tmp_path, device):
    saved = Convolution()
    with torch.no_grad():
        for tensor in [*saved.linear.parameters(), *saved.norm.parameters(), saved.norm.running_mean]:
            tensor.normal_()
    model = built(Convolution, device)
    objects = [*model.parameters(), *([] if device == "meta" else model.buffers())]
    generator = torch.get_rng_state()
    ledger = tieshard.load(model, stored(saved, tmp_path / "saved"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(ours is theirs for ours, theirs in zip([*model.parameters(), *model.buffers()], objects))
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert ledger.buffers_recomputed == ["scale", "mask", "of_weight"] and not ledger.buffers_left
    assert model.scale.tolist() == [2.0] * 4 and model.mask.tolist() == [False] * 2
    assert torch.equal(model.of_weight, saved.linear.weight.detach().sum(0))


class Wrapped(torch.nn.Module):
    """A module in another one, as projects of many kinds have it: stored names lack `module.`"""

    def __init__(self, make):
        super().__init__()
        self.module = make()


class Numbers(torch.nn.Module):
    """Parameters of all kinds, one of them under two names, and buffers that have two."""

    def __init__(self):
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.int8), requires_grad=False)
        self.other = torch.nn.Module()
        self.other.count = self.count
        self.wave = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        self.linear = torch.nn.Linear(2, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.zeros(4, dtype=torch.bool))
        self.other.register_buffer("mask", self.mask)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))


def filled():
    numbers = Numbers()
    with torch.no_grad():
        numbers.count.copy_(torch.arange(6).reshape(3, 2))
        numbers.wave.copy_(torch.tensor([1 + 2j, 3, -4j]))
        numbers.norm.running_mean.fill_(7)
        numbers.mask[1:3] = True
        numbers.seen.fill_(5)
    return numbers


def saved_once(numbers, folder):
    """Each storage under one of its names, as save_pretrained does."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor for name, tensor in numbers.state_dict().items() if name not in ("count", "other.mask")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_integers_complex_numbers_and_buffers_are_loaded_under_all_names(tmp_path, device, wrapped):
    saved = filled()
    model = built(lambda: Wrapped(Numbers) if wrapped else Numbers(), device)
    objects = list(model.parameters())
    ledger = tieshard.load(model, saved_once(saved, tmp_path / "saved"))
    assert [finding.code for finding in ledger.warnings] == ["base-model-prefix"] * wrapped and not ledger.unused and not ledger.buffers_left
    assert all(ours is theirs for ours, theirs in zip(model.parameters(), objects, strict=True))
    numbers, prefix = (model.module, "module.") if wrapped else (model, "")
    for name, tensor in saved.state_dict().items():
        assert torch.equal(numbers.state_dict()[name], tensor), name
    assert numbers.mask is numbers.other.mask and numbers.count is numbers.other.count
    entry = ledger.find(f"{prefix}count")
    assert (entry.aliases, entry.stored_name, entry.stored_dtype, entry.elements) == ([f"{prefix}other.count"], "other.count", "I8", 6)
    assert f"{prefix}other.mask" in ledger.buffers_loaded and not ledger.buffers_recomputed


def test_a_module_without_floating_parameters_is_loaded(tmp_path):
    saved, model = torch.nn.BatchNorm1d(3, affine=False), torch.nn.BatchNorm1d(3, affine=False)
    saved.running_var.fill_(4)
    assert not tieshard.load(model, stored(saved, tmp_path)).buffers_left and model.running_var.tolist() == [4.0] * 3


def test_a_parameter_of_integers_that_no_file_holds_is_refused(tmp_path):
    model = Numbers()
    model.more = torch.nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(tieshard.InputError) as caught:
        tieshard.load(model, saved_once(filled(), tmp_path / "saved"))
    assert caught.value.code == "missing-parameter" and "more (torch.int64)" in caught.value.where


@pytest.mark.parametrize(("name", "value", "code"), [
    ("norm.running_mean", torch.zeros(3), "shape-mismatch"),
    ("norm.running_mean", torch.zeros(1, 2), "shape-mismatch"),
    ("norm.running_mean", torch.zeros(2, dtype=torch.complex64), "dtype-not-loadable"),
    ("seen", torch.tensor(2**40), "dtype-not-loadable"),
    ("seen", torch.tensor(2.5), "dtype-not-loadable"),
    ("seen", torch.tensor(float("nan")), "dtype-not-loadable"),
    ("mask", torch.tensor([0, 1, 2, 0]), "dtype-not-loadable"),
    ("other.count", torch.zeros(2, 3, dtype=torch.int8), "shape-mismatch"),
    ("other.count", torch.full((3, 2), 200, dtype=torch.uint8), "dtype-not-loadable"),
])
def test_a_value_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, name, value, code):
    saved = filled()
    tensors = {fqn: tensor for fqn, tensor in saved.state_dict().items() if fqn not in ("count", "other.mask")}
    save_file({**tensors, name: value}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    model = Numbers()
    before = {fqn: tensor.clone() for fqn, tensor in model.state_dict().items()}
    with pytest.raises(tieshard.InputError) as caught:
        tieshard.load(model, tmp_path)
    assert caught.value.code == code and caught.value.where.endswith(name.split(".")[-1])
    assert all(torch.equal(tensor, before[fqn]) for fqn, tensor in model.state_dict().items())


def test_values_that_fit_another_dtype_are_loaded(tmp_path):
    tensors = {fqn: tensor for fqn, tensor in filled().state_dict().items() if fqn not in ("count", "other.mask")}
    tensors |= {"seen": torch.tensor(9.0), "mask": torch.tensor([0, 1, 0, 1]), "norm.running_var": torch.tensor([2, 3], dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    model = Numbers()
    tieshard.load(model, tmp_path)
    assert model.seen.item() == 9 and model.seen.dtype == torch.int32 and model.mask.tolist() == [False, True, False, True]
    assert model.norm.running_var.tolist() == [2.0, 3.0]


def check_sharded(folder):
    expected = LlavaForConditionalGeneration.from_pretrained(folder)
    for device in ("meta", "cpu"):
        model = built(lambda: LlavaForConditionalGeneration(expected.config), device)
        tieshard.fully_shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))
        tieshard.load(model, folder)
        for (fqn, tensor), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
            assert torch.equal(tensor.full_tensor(), theirs), fqn


def test_parts_of_weights_beside_buffers_are_those_of_the_files(tmp_path):
    LlavaForConditionalGeneration(MODELS["llava"][1]()).save_pretrained(tmp_path)
    run_on_ranks(2, check_sharded, tmp_path)
