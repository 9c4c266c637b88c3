"""accelerate #3821: a parameter in the optimizer couldn't be switched to its sharded version. Without tieshard, and with it."""

import pytest
import tieshard
import torch
from issue_models import IDS, accelerator, expected_losses, on_meta, save_tied, two_steps, whole
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

OPTIONS = {"lr": 0.01, "eps": 1e-4}
MESSAGE = "couldn't be switched to its sharded version"


def test_the_write_ups_tests():
    """test_all_managed_ok, test_stray_param_rejected and test_optimizer_after_wrap_holds_managed, with the guard in place of a set of ids."""
    model = torch.nn.Linear(4, 4)
    guard = tieshard.OptimizerGuard()
    guard.register_managed(model.parameters())
    guard.assert_all_managed(list(model.parameters()))
    stray = torch.nn.Parameter(torch.randn(3, 3))
    with pytest.raises(KeyError):
        guard.assert_all_managed([*model.parameters(), stray])
    optimizer = guard.build(torch.optim.AdamW, lr=1e-3)
    with pytest.raises(KeyError):
        optimizer.add_param_group({"params": [stray]})


def shard(model):
    return tieshard.fully_shard(model, init_device_mesh("cpu", (2,)))


def check_early_on_torch(directory):
    """torch says nothing: an optimizer from before fully_shard steps on parameters that nothing computes with."""
    model = whole(directory)
    early = torch.optim.AdamW(model.parameters(), **OPTIONS)
    for layer in model.model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    losses = two_steps(model, early)
    assert losses[0] == losses[1] == losses[2]
    optimizer = tieshard.OptimizerGuard(model).adopt(early)
    optimizer.zero_grad()
    assert two_steps(model, optimizer) == pytest.approx(expected_losses(directory, **OPTIONS), rel=1e-5)


def check_early_on_accelerate(directory):
    """accelerate maps by data_ptr, which is 0 for all of the meta device: every slot becomes one and the same parameter, without a word."""
    model = on_meta(directory)
    early = torch.optim.AdamW(model.parameters(), **OPTIONS)
    _, prepared = accelerator(False).prepare(model, early)
    assert len({id(each) for group in prepared.param_groups for each in group["params"]}) == 1
    # and of an optimizer that has stepped, the state stays with parameters that are gone
    model = whole(directory)
    early = torch.optim.AdamW(model.parameters(), **OPTIONS)
    two_steps(model, early)
    prepared_model, prepared = accelerator(False).prepare(model, early)
    assert not any(isinstance(each, DTensor) for each in early.state) and early.state


def check_early_with_tieshard(directory):
    expected = expected_losses(directory, **OPTIONS)
    for make in (on_meta, whole):
        model = make(directory)
        early = torch.optim.AdamW(model.parameters(), **OPTIONS)
        shard(model)
        tieshard.load(model, directory)
        assert two_steps(model, tieshard.OptimizerGuard(model).adopt(early)) == pytest.approx(expected, rel=1e-5)
    reference, model = whole(directory), whole(directory)
    optimizers = [torch.optim.AdamW(each.parameters(), **OPTIONS) for each in (reference, model)]
    for each, optimizer in zip((reference, model), optimizers, strict=True):
        two_steps(each, optimizer)
    with tieshard.accelerate_hook():
        model, optimizer = accelerator(False).prepare(model, optimizers[1])
    assert two_steps(model.eval(), optimizer) == pytest.approx(two_steps(reference, optimizers[0]), rel=1e-4)


def check_stray_parameter(directory):
    model = whole(directory)
    stray = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(KeyError, match=MESSAGE):
        accelerator(False).prepare(model, torch.optim.AdamW([*model.parameters(), stray]))
    model = whole(directory)
    optimizer = torch.optim.AdamW([*model.parameters(), stray], **OPTIONS)
    held = list(optimizer.param_groups[0]["params"])
    with tieshard.accelerate_hook(), pytest.raises(KeyError) as caught:
        accelerator(False).prepare(model, optimizer)
    assert caught.value.code == "optimizer-parameter" and "a tensor of shape [3] (group 0, slot 20): foreign" in caught.value.why
    assert all(a is b for a, b in zip(held, optimizer.param_groups[0]["params"], strict=True))
    optimizer.param_groups[0]["params"].pop()  # nothing was sharded yet: the corrected call goes through
    with tieshard.accelerate_hook():
        model, optimizer = accelerator(False).prepare(model, optimizer)
    assert two_steps(model.eval(), optimizer) == pytest.approx(expected_losses(directory, **OPTIONS), rel=1e-5)
    with pytest.raises(KeyError) as caught:
        tieshard.OptimizerGuard(model).build(torch.optim.AdamW, [*model.parameters(), stray])
    assert "foreign" in caught.value.why


def check_what_accelerate_takes(directory):
    """Frozen layers in the optimizer, two optimizers, a compiled model, modules that are ignored by a pattern."""
    model = whole(directory)
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(False)
    with tieshard.accelerate_hook(), pytest.warns(UserWarning, match="9 frozen parameters were taken out"):
        model, optimizer = accelerator(False).prepare(model, torch.optim.AdamW(model.parameters(), **OPTIONS))
    assert len(set(two_steps(model, optimizer))) == 3
    model = whole(directory)
    optimizers = [torch.optim.SGD(model.model.layers.parameters(), lr=0.1),
                  torch.optim.AdamW([each for name, each in model.named_parameters() if "layers" not in name], **OPTIONS)]
    with tieshard.accelerate_hook():
        model, *optimizers = accelerator(False).prepare(model, *optimizers)
    assert model(input_ids=IDS, labels=IDS).loss.backward() is None
    for optimizer in optimizers:
        optimizer.step()
    model = torch.compile(whole(directory), backend="eager")
    with tieshard.accelerate_hook():
        model, optimizer = accelerator(False).prepare(model, torch.optim.AdamW(model.parameters(), **OPTIONS))
    assert two_steps(model, optimizer) == pytest.approx(expected_losses(directory, **OPTIONS), rel=1e-5)
    prepared = accelerator(False)
    prepared.state.fsdp_plugin.ignored_modules = r"model\.layers\.1"
    model = whole(directory)
    with tieshard.accelerate_hook():
        model, optimizer = prepared.prepare(model, torch.optim.AdamW(model.parameters(), **OPTIONS))
    assert not isinstance(model.model.layers[1].mlp.up_proj.weight, DTensor) and isinstance(model.model.norm.weight, DTensor)


def check_adapter_after_the_wrap(directory):
    """torch trains it on each rank apart, without a word; the guard names it."""
    model = shard(whole(directory))
    model.adapter = torch.nn.Linear(16, 4, bias=False)
    with pytest.raises(KeyError) as caught:
        tieshard.OptimizerGuard(model).build(torch.optim.AdamW)
    assert "adapter.weight (no group): not managed" in caught.value.why
    del model.adapter
    optimizer = tieshard.OptimizerGuard(model).build(torch.optim.AdamW, **OPTIONS)
    model.adapter = torch.nn.Linear(16, 4, bias=False)
    with pytest.raises(KeyError) as caught:
        optimizer.add_param_group({"params": model.adapter.parameters()})
    assert "adapter.weight (group 1, slot 0): not managed" in caught.value.why
    before = whole(directory)
    before.adapter = torch.nn.Linear(16, 4, bias=False)
    tieshard.OptimizerGuard(shard(before)).build(torch.optim.AdamW)


def check_all(directory):
    for check in (check_early_on_torch, check_early_on_accelerate, check_early_with_tieshard, check_stray_parameter, check_what_accelerate_takes,
                  check_adapter_after_the_wrap):
        check(directory)


def test_on_two_ranks(tmp_path):
    run_on_ranks(2, check_all, save_tied(tmp_path))
