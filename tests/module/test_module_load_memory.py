"""tieshard.load into parameters that others refer to, or whose memory cannot be written: the object stays, its memory is another one."""

import weakref

import pytest
import tieshard
import torch
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def stored(module, folder):
    save_file(module.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("make", [lambda: torch.nn.LSTM(3, 4, 2), lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.GRU(3, 4),
                                                                                                                      "weight_hh_l0")])
def test_a_recurrent_module_from_meta_computes_with_what_was_loaded(tmp_path, make):
    saved = make()
    with torch.device("meta"):
        model = make()
    tieshard.load(model, stored(saved, tmp_path))
    inputs = torch.randn(5, 2, 3)
    assert torch.equal(model(inputs)[0], saved(inputs)[0])
    model(inputs)[0].sum().backward()
    saved(inputs)[0].sum().backward()
    for ours, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def observed(parameter, calls):
    parameter.register_hook(lambda gradient: calls.append("hook"))
    parameter.register_post_accumulate_grad_hook(lambda each: calls.append("after"))
    parameter.mine = "kept"
    return weakref.ref(parameter)


@pytest.mark.parametrize("with_reference", [False, True])
def test_hooks_attributes_and_weak_references_go_with_the_object(tmp_path, with_reference):
    saved, calls = torch.nn.Linear(3, 2), []
    model = torch.nn.Linear(3, 2, device="meta")
    reference = observed(model.weight, calls)
    if not with_reference:
        reference = None
    tieshard.load(model, stored(saved, tmp_path))
    assert reference is None or reference() is model.weight
    model(torch.ones(1, 3)).sum().backward()
    assert calls == ["hook", "after"] and model.weight.mine == "kept" and model.weight.is_leaf and torch.equal(model.weight, saved.weight)


def test_a_part_keeps_its_weak_references(tmp_path):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        saved, model = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2, device="meta")
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight, init_device_mesh("cpu", (1,)), [Shard(0)]))
        weight, reference = model.weight, weakref.ref(model.weight)
        tieshard.load(model, stored(saved, tmp_path))
        assert reference() is weight is model.weight and torch.equal(weight.full_tensor(), saved.weight)
    finally:
        torch.distributed.destroy_process_group()


def test_an_expanded_parameter_gets_memory_of_its_own(tmp_path):
    saved, model = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    row = torch.zeros(1, 3)
    model.weight = weight = torch.nn.Parameter(row.expand(2, 3))
    model.register_buffer("scale", torch.zeros(1).expand(4))
    saved.register_buffer("scale", torch.arange(4.0))
    tieshard.load(model, stored(saved, tmp_path))
    assert model.weight is weight and torch.equal(weight, saved.weight) and not row.any()
    assert torch.equal(model.scale, saved.scale)


def test_a_parameter_that_a_graph_holds_is_refused_with_a_diagnostic(tmp_path):
    model = torch.nn.Linear(3, 2, device="meta")
    held = model.weight.sum() + model.weight.expand(1, 2, 3).sum()
    view = model.weight.view(6)
    with pytest.raises(tieshard.UsageError) as caught:
        tieshard.load(model, stored(torch.nn.Linear(3, 2), tmp_path))
    assert caught.value.code == "still-on-meta" and "[2, 3]" in caught.value.where and held.is_meta and view.is_meta
