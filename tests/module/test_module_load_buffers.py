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
