"""tieshard.fully_shard: loss, gradients and updates are those of the module that was never sharded; what cannot be is refused."""

import pathlib
import warnings

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_models import class_of, on_meta
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

TIED = ["llama_tied", "t5", "gpt2", "gpt_oss_tied", "bloom"]
IDS = torch.arange(1, 13).reshape(1, 12)


def quiet_shard(model, mesh=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tieshard.fully_shard(model, mesh or init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def check_parity(folder, names):
    """Two AdamW steps; the decay moves every row of a table, those of tokens that do not occur too."""
    for name in names:
        whole, model = class_of(name).from_pretrained(folder / name).eval(), on_meta(folder / name, name).eval()
        quiet_shard(model)
        tieshard.load(model, folder / name)
        options = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4}
        optimizer, reference = tieshard.OptimizerGuard(model).build(torch.optim.AdamW, **options), torch.optim.AdamW(whole.parameters(), **options)
        start = {fqn: parameter.detach().clone() for fqn, parameter in whole.named_parameters()}
        for _ in range(2):
            loss, expected = (each(input_ids=IDS, labels=IDS).loss for each in (model, whole))
            torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
            loss.backward()
            expected.backward()
            gradients = {fqn: parameter.grad for fqn, parameter in whole.named_parameters()}
            for fqn, parameter in model.named_parameters():
                torch.testing.assert_close(parameter.grad.full_tensor(), gradients[fqn], rtol=1e-4, atol=1e-5, msg=lambda text: f"{name} {fqn}: {text}")
            for each in (optimizer, reference):
                each.step()
                each.zero_grad()
        updated = dict(whole.named_parameters())
        for fqn, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.full_tensor(), updated[fqn], rtol=1e-3, atol=1e-4, msg=lambda text: f"{name} {fqn}: {text}")
        table = tieshard.sharding_of(model).find("lm_head.weight")
        moved = (model.get_parameter(table.name).full_tensor() - start[table.name]).abs().amax(dim=1)
        assert table.aliases and (moved > 0).all(), name
        tieshard.validate_shared_object(model)


def check_placements(folder):
    """A tied table is cut on its columns where they divide by the ranks, else into rows, with a warning; all others as torch does."""
    model = on_meta(folder / "t5", "t5")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert tieshard.fully_shard(model, init_device_mesh("cpu", (dist.get_world_size(),))) is model
    divides = 32 % dist.get_world_size() == 0
    sharding = tieshard.sharding_of(model)
    table = sharding.find("decoder.embed_tokens.weight")
    assert table.name == "shared.weight" and table.aliases == ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
    assert table.dim == (1 if divides else 0) and model.lm_head.weight.placements == (Shard(table.dim),)
    assert [finding.code for finding in sharding.findings] == ([] if divides else ["tied-weight-on-vocab"])
    assert ["dimension than its last" in str(each.message) for each in seen] == ([] if divides else [True])
    assert all(each.dim == 0 for each in sharding.parameters if not each.aliases)
    assert set(sharding.units) == {"", "encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"}
    assert sum(len(names) for names in sharding.units.values()) == len(list(model.parameters()))
    assert "tied: shared.weight" in repr(sharding) and "<td>encoder.block.0</td>" in sharding._repr_html_()


class Chain(torch.nn.Module):
    """Blocks of a list, and what `tie` makes of them."""

    def __init__(self, blocks=4, tie=lambda chain: None):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(6, 6)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6)) for _ in range(blocks))
        self.last = torch.nn.Linear(6, 6)
        tie(self)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def tie_blocks(chain):
    chain.blocks[3][0].weight = chain.blocks[1][0].weight


def tie_to_root(chain):
    chain.last.weight = chain.blocks[2][2].weight


def tie_three_ways(chain):
    tie_blocks(chain)
    chain.blocks[2][2].weight = chain.blocks[3][2].weight
    chain.last.bias = chain.blocks[0][0].bias


def tie_modules(chain):
    chain.blocks[2] = chain.blocks[0]


def tie_within(chain):
    chain.blocks[1][2].weight = chain.blocks[1][0].weight


UNITS = {
    tie_blocks: ["blocks.1 + blocks.3", "blocks.0", "blocks.2", ""],
    tie_to_root: ["blocks.0", "blocks.1", "blocks.3", ""],
    tie_three_ways: ["blocks.1 + blocks.2 + blocks.3", ""],
    tie_modules: ["blocks.0", "blocks.1", "blocks.3", ""],
    tie_within: ["blocks.0", "blocks.1", "blocks.2", "blocks.3", ""],
}


def check_units():
    """Units that share a parameter are one, or part of what holds both. torch alone would copy it, or refuse the first forward."""
    for tie, units in UNITS.items():
        whole, model = Chain(tie=tie), Chain(tie=tie)
        quiet_shard(model)
        sharding = tieshard.sharding_of(model)
        assert set(sharding.units) == set(units), tie.__name__
        assert len(sharding.parameters) == len(list(whole.parameters())) == len(list(model.parameters()))
        assert [each.names for each in tieshard.TieRegistry.of(model)] == [each.names for each in tieshard.TieRegistry.of(whole)]
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
        optimizers = [tieshard.OptimizerGuard(model).build(torch.optim.SGD, lr=0.5), torch.optim.SGD(whole.parameters(), lr=0.5)]
        for _ in range(2):
            for each, optimizer in zip((model, whole), optimizers, strict=True):
                each(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        for (fqn, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(parameter.full_tensor(), expected, rtol=1e-5, atol=1e-6, msg=lambda text: f"{tie.__name__} {fqn}: {text}")


def check_asked_units():
    for asked, units in ((["blocks.1"], {"", "blocks.1"}), ([torch.nn.Linear], {"first", "last", *(f"blocks.{i}.{j}" for i in range(4) for j in (0, 2))}),
                         ([], {""}), (["blocks.1", "blocks.1.0"], {"", "blocks.1", "blocks.1.0"})):
        model = quiet_shard(Chain(), units=asked)
        assert set(tieshard.sharding_of(model).units) == units, asked
        model(torch.ones(2, 6)).sum().backward()


def check_hsdp(folder):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    whole, model = class_of("llama_tied").from_pretrained(folder / "llama_tied"), on_meta(folder / "llama_tied", "llama_tied")
    tieshard.fully_shard(model, mesh, reshard_after_forward=False)
    tieshard.load(model, folder / "llama_tied")
    assert tieshard.sharding_of(model).find("lm_head.weight").dim == 1
    loss, expected = (each(input_ids=IDS, labels=IDS).loss for each in (model, whole))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(model.lm_head.weight.grad.full_tensor(), whole.lm_head.weight.grad, rtol=1e-4, atol=1e-5)


def check_lost_ties(folder):
    """Before fully_shard a lost tie is refused where values differ; after it, load puts back what was sharded as one."""
    whole = class_of("llama_tied").from_pretrained(folder / "llama_tied")
    emptied = on_meta(folder / "llama_tied", "llama_tied").to_empty(device="cpu")
    assert emptied.lm_head.weight is not emptied.model.embed_tokens.weight
    emptied.lm_head.weight.data.fill_(1)
    emptied.model.embed_tokens.weight.data.fill_(2)
    error = refusal(AssertionError, lambda: quiet_shard(emptied))
    assert error.code == "tie-not-shared" and "to_empty" in error.why
    from peft import LoraConfig, get_peft_model

    for wrap in (lambda lost: get_peft_model(lost, LoraConfig(r=2, target_modules=["q_proj"])), lambda lost: torch.nn.ModuleDict({"inner": lost})):
        lost = class_of("llama_tied").from_pretrained(folder / "llama_tied")
        lost.lm_head.weight = torch.nn.Parameter(lost.lm_head.weight.detach() + 1)
        error = refusal(AssertionError, lambda: quiet_shard(wrap(lost)))
        assert error.code == "tie-not-shared" and "lm_head.weight" in error.where
    model = on_meta(folder / "llama_tied", "llama_tied")
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))  # what .to("meta") does: nothing to lose
    quiet_shard(model)
    assert tieshard.sharding_of(model).tied_again == ["lm_head.weight"]
    model.load_state_dict({name: torch.empty_like(value, device="cpu") for name, value in model.state_dict().items()}, assign=True)
    error = refusal(tieshard.UsageError, lambda: tieshard.validate_shared_object(model))
    assert error.code == "tie-not-shared" and "lm_head.weight" in error.where
    assert tieshard.load(model, folder / "llama_tied").mended == ["lm_head.weight"]
    tieshard.validate_shared_object(model)
    optimizer = tieshard.OptimizerGuard(model).build(torch.optim.SGD, lr=0.1)
    loss = model(input_ids=IDS, labels=IDS).loss
    torch.testing.assert_close(loss, whole(input_ids=IDS, labels=IDS).loss)
    loss.backward()
    optimizer.step()


def refusal(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def check_refusals(folder):
    """What would go wrong later is refused before anything is sharded."""
    scalar = Chain()
    scalar.scale = torch.nn.Parameter(torch.tensor(1.0))
    error = refusal(tieshard.UsageError, lambda: quiet_shard(scalar))
    assert error.code == "bad-shard-dim" and error.where == "scale" and not any(hasattr(each, "reshard") for each in scalar.modules())
    quiet_shard(scalar, ignored_params={scalar.scale})
    error = refusal(tieshard.UsageError, lambda: quiet_shard(scalar))
    assert error.code == "already-sharded"
    error = refusal(tieshard.UsageError, lambda: quiet_shard(Chain(), units=["blocks.9"]))
    assert error.code == "unknown-unit" and error.where == "blocks.9"
    error = refusal(tieshard.UsageError, lambda: quiet_shard(on_meta(folder / "gpt2", "gpt2"), shard_placement_fn=lambda parameter: Shard(0)))
    assert error.code == "tied-weight-on-vocab" and error.where == "transformer.wte.weight = lm_head.weight"
    error = refusal(tieshard.UsageError, lambda: tieshard.sharding_of(Chain()))
    assert error.code == "not-sharded"
    shared = Chain()
    shared.last.weight = torch.nn.Parameter(shared.first.weight.data)
    error = refusal(AssertionError, lambda: quiet_shard(shared))
    assert error.code == "tie-not-shared" and "first.weight and last.weight" in error.where
    error = refusal(ValueError, lambda: quiet_shard(Chain(), tie={"last.weight": "frist.weight"}))
    assert error.code == "tie-unknown-name"
    copied = Chain()
    copied.last.weight = torch.nn.Parameter(copied.first.weight.detach().clone())
    quiet_shard(copied, tie={"last.weight": "first.weight"})
    assert copied.last.weight is copied.first.weight and tieshard.sharding_of(copied).tied_again == ["last.weight"]


def check_all(folder, names):
    check_parity(folder, names)
    check_placements(folder)
    if dist.get_world_size() == 2:
        check_units()
        check_asked_units()
        check_hsdp(folder)
        check_lost_ties(folder)
        check_refusals(folder)


@pytest.mark.parametrize("world", [2, 3])
def test_fully_shard(models, world):
    run_on_ranks(world, check_all, pathlib.Path(models), TIED)
