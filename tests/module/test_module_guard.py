"""OptimizerGuard and switch_to_sharded: an early optimizer goes on with its numbers, and each kind of wrong slot is refused by name."""

import copy
import warnings

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate

OPTIMIZERS = {
    torch.optim.AdamW: {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4},
    torch.optim.Adam: {"lr": 0.01, "amsgrad": True, "eps": 1e-4},
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    torch.optim.Adagrad: {"lr": 0.1},
    torch.optim.RMSprop: {"lr": 0.01, "momentum": 0.5, "centered": True},
}


class Tied(torch.nn.Module):
    """An uneven tied table (11 x 8), a block and a frozen part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.GELU(), torch.nn.Linear(5, 8)) for _ in range(2)])
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.blocks[0][0].bias.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


IDS = torch.arange(10).reshape(2, 5)


def step(model, optimizer):
    optimizer.zero_grad()
    logits = model(IDS)
    torch.nn.functional.cross_entropy(logits.view(-1, 11), IDS.view(-1)).backward()
    optimizer.step()


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def shard(model, by_torch=False):
    if by_torch:
        for block in model.blocks:
            fully_shard(block, mesh=mesh())
        return fully_shard(model, mesh=mesh())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tieshard.fully_shard(model, mesh())


def assert_same(model, whole, text):
    for (fqn, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(parameter.full_tensor(), expected, rtol=1e-4, atol=1e-6, msg=lambda why: f"{text} {fqn}: {why}")


def check_early_optimizers():
    """Built before, stepped twice before, then sharded: the numbers of one that was never sharded."""
    for kind, options in OPTIMIZERS.items():
        for stepped in (0, 2):
            for by_torch in (False, True):
                whole, model = Tied(), Tied()
                reference, early = kind(trainable(whole), **options), kind(trainable(model), **options)
                for _ in range(stepped):
                    step(whole, reference)
                    step(model, early)
                early.zero_grad()
                originals = trainable(model)
                shard(model, by_torch)
                optimizer = tieshard.OptimizerGuard(model).adopt(early)
                assert optimizer is early and {id(p) for p in early.param_groups[0]["params"]} == {id(p) for p in trainable(model)}
                assert not any(each in early.state for each in originals)
                for _ in range(2):
                    step(whole, reference)
                    step(model, optimizer)
                assert_same(model, whole, f"{kind.__name__} {stepped} {by_torch}")


def check_mapping():
    """switch_to_sharded alone, with a mapping as accelerate makes one; all that it lacks is named, and nothing has changed."""
    whole, model = Tied(), Tied()
    reference, early = (torch.optim.AdamW(trainable(each), lr=0.01, eps=1e-4) for each in (whole, model))
    step(whole, reference)
    step(model, early)
    early.zero_grad()
    before = dict(model.named_parameters())
    shard(model)
    mapping = {before[name]: parameter for name, parameter in model.named_parameters()}
    stray = torch.nn.Parameter(torch.ones(3))
    early.param_groups[0]["params"].append(stray)
    held, state = list(early.param_groups[0]["params"]), {key: dict(value) for key, value in early.state.items()}
    with pytest.raises(KeyError) as caught:
        tieshard.switch_to_sharded(early, mapping)
    assert isinstance(caught.value, tieshard.errors.GuardError) and "group 0, slot 8" in caught.value.why and "[3]" in caught.value.why
    assert all(a is b for a, b in zip(held, early.param_groups[0]["params"], strict=True)) and early.state.keys() == state.keys()
    early.param_groups[0]["params"].pop()
    tieshard.switch_to_sharded(early, mapping)
    assert all(isinstance(each["exp_avg"], DTensor) for each in early.state.values())
    step(whole, reference)
    step(model, early)
    assert_same(model, whole, "mapping")


def refused(call):
    with pytest.raises(tieshard.errors.GuardError) as caught:
        call()
    assert caught.value.code == "optimizer-parameter" and caught.value.fix
    return caught.value.why


def check_refusals():
    model = shard(Tied())
    guard = tieshard.OptimizerGuard(model)
    parameters = trainable(model)
    stray = torch.nn.Parameter(torch.ones(3))
    assert "a tensor of shape [3] (group 0, slot 8): foreign" in refused(lambda: guard.assert_all_managed([*parameters, stray]))
    assert "embed.weight (no group): managed and trainable, but in no group" in refused(lambda: guard.build(torch.optim.SGD, parameters[1:], lr=1))
    assert "blocks.0.0.bias (group 0, slot 2): frozen" in refused(lambda: guard.build(torch.optim.SGD, list(model.parameters()), lr=1))
    assert "listed before" in refused(lambda: guard.build(torch.optim.SGD, [{"params": parameters}, {"params": parameters[:1]}], lr=1))
    groups = [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:]}]
    optimizer = guard.build(torch.optim.SGD, groups, lr=0.01)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    assert "foreign" in refused(lambda: optimizer.add_param_group({"params": stray})) and len(optimizer.param_groups) == 2
    named = guard.build(torch.optim.SGD, [(name, each) for name, each in model.named_parameters() if each.requires_grad], lr=0.01)
    assert named.param_groups[0]["param_names"][0] == "embed.weight"
    optimizer = guard.build(torch.optim.SGD, lr=0.01)
    model.adapter = torch.nn.Linear(8, 1)  # registered after
    assert "adapter.weight (no group): not managed" in refused(lambda: step(model, optimizer))
    assert "adapter.weight" in refused(lambda: optimizer.add_param_group({"params": model.adapter.parameters()}))
    assert "adapter.bias" in refused(lambda: guard.build(torch.optim.SGD, lr=1))
    guard.register_managed(model.adapter.named_parameters())
    optimizer.add_param_group({"params": model.adapter.parameters()})
    step(model, optimizer)
    model.adapter.weight.requires_grad_(False)
    assert "weight (group 1, slot 0): frozen" in refused(optimizer.step)
    assert guard.drop_frozen(optimizer) == [model.adapter.weight]
    optimizer.step()
    model.embed.weight.requires_grad_(False)
    assert "embed.weight (group 0, slot 0): frozen" in refused(optimizer.step)
    model.embed.weight.requires_grad_(True)
    parameters[1].grad = DTensor.from_local(torch.ones(5, 8), mesh(), [Replicate()], run_check=False)  # whole, and of one rank alone
    assert "its gradient is not this rank's part" in refused(optimizer.step)
    optimizer.zero_grad()
    model.blocks[1][0].weight = torch.nn.Parameter(torch.ones(5, 8))
    assert "stale" in refused(optimizer.step)


def check_state_that_cannot_be_cut():
    model = Tied()
    early = torch.optim.Adafactor(trainable(model), lr=0.01)
    step(model, early)
    assert "hand the optimizer to" not in refused(lambda: tieshard.OptimizerGuard(shard_again(model)).adopt(early))
    model = Tied()
    early = torch.optim.SGD(trainable(model), lr=0.1)
    early.state[model.embed.weight]["history"] = [torch.ones(11, 8)]
    said = refused(lambda: tieshard.OptimizerGuard(shard(model)).adopt(early))
    assert "embed.weight (group 0, slot 0)" in said and "history is a list of tensors" in said
    model, early = Tied(), None
    early = torch.optim.LBFGS(trainable(model))
    early.step(lambda: loss_with_gradient(model))
    early.zero_grad()
    held = early.param_groups[0]["params"][0]
    assert "LBFGS" in refused(lambda: tieshard.OptimizerGuard(shard(model)).adopt(early)) and early.param_groups[0]["params"][0] is held
    model = Tied()
    early = torch.optim.SGD(trainable(model), lr=0.1)
    loss_with_gradient(model)
    assert "before fully_shard" in refused(lambda: tieshard.OptimizerGuard(shard(model)).adopt(early))


def shard_again(model):
    for parameter in model.parameters():
        parameter.grad = None
    return shard(model)


def loss_with_gradient(model):
    loss = torch.nn.functional.cross_entropy(model(IDS).view(-1, 11), IDS.view(-1))
    loss.backward()
    return loss


def check_tied_later():
    """Two weights when the optimizer was built, one since: the names say so; two states are one too many."""
    for stepped in (False, True):
        model = Tied()
        model.head.weight = torch.nn.Parameter(model.embed.weight.detach().clone())
        early = torch.optim.AdamW(trainable(model), lr=0.1)
        originals = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if stepped:
            step(model, early)
            early.zero_grad()
        model.head.weight = model.embed.weight
        shard(model)
        guard = tieshard.OptimizerGuard(model)
        assert "[11, 8]" in refused(lambda: guard.adopt(early))  # whose is that one?
        if stepped:
            assert "two weights with a state each are one now" in refused(lambda: guard.adopt(early, originals))
        else:
            assert len(guard.adopt(early, originals).param_groups[0]["params"]) == len(originals) - 1


def check_two_optimizers():
    """Each knows of the other: what both hold together is all."""
    whole, model = Tied(), Tied()
    pairs = [[torch.optim.SGD(trainable(each)[:3], lr=0.1), torch.optim.AdamW(trainable(each)[3:], lr=0.01, eps=1e-4)] for each in (whole, model)]
    shard(model)
    guards = [tieshard.OptimizerGuard(model) for _ in range(2)]
    for guard, other in zip(guards, reversed(pairs[1]), strict=True):
        guard.beside = [other]
    for guard, optimizer in zip(guards, pairs[1], strict=True):
        guard.adopt(optimizer)
    for each, pair in zip((whole, model), pairs, strict=True):
        for _ in range(2):
            logits = each(IDS)
            torch.nn.functional.cross_entropy(logits.view(-1, 11), IDS.view(-1)).backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()
    assert_same(model, whole, "two optimizers")
    pairs[1][1].param_groups[0]["params"].pop()
    assert "managed and trainable, but in no group" in refused(pairs[1][0].step)


def check_report():
    model = Tied()
    early = torch.optim.SGD([*trainable(model)[1:], torch.nn.Parameter(torch.ones(3))], lr=0.1)
    shard(model)
    report = tieshard.OptimizerGuard(model).report(early)
    kinds = {each.name: each.kind for each in report}
    assert kinds["blocks.0.0.weight"] == "original" and kinds["a tensor of shape [3]"] == "foreign" and kinds["embed.weight"] == "left-out"
    assert "group 0 slot 0  blocks.0.0.weight  original  [5, 8]" in repr(report)
    optimizer = tieshard.OptimizerGuard(model).build(torch.optim.AdamW, lr=0.1)
    step(model, optimizer)
    report = tieshard.OptimizerGuard(model).report(optimizer)
    assert {each.kind for each in report} == {"managed"} and len(report) == 8
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(model, optimizer)
    scheduler.step()
    assert copy.deepcopy(optimizer.state_dict())["param_groups"][0]["lr"] == pytest.approx(0.01)


def check_all():
    for check in (check_early_optimizers, check_mapping, check_two_optimizers, check_refusals, check_tied_later, check_report,
                  check_state_that_cannot_be_cut):
        check()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_guard(world):
    run_on_ranks(world, check_all)


def test_without_sharding():
    """As the write-up has it: the guard of a module on one process, registered by hand."""
    model = torch.nn.Linear(4, 4)
    with pytest.raises(tieshard.UsageError) as caught:
        tieshard.OptimizerGuard(model)
    assert caught.value.code == "not-sharded"
    guard = tieshard.OptimizerGuard()
    guard.register_managed(model.parameters())
    optimizer = guard.build(torch.optim.AdamW, lr=1e-3)
    with pytest.raises(KeyError):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.randn(3, 3))]})
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
