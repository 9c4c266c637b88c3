"""accelerate #3870: KeyError lm_head.weight when a tied model is sharded with FSDP2. Without tieshard, and with it."""

import pytest
import tieshard
import torch
import torch.distributed as dist
from issue_models import accelerator, expected_losses, on_meta, save_tied, two_steps, whole
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OPTIONS = {"lr": 0.01, "eps": 1e-4}


def test_the_write_ups_tests():
    """test_tied_no_keyerror, test_alias_points_to_target and test_untied_untouched, of a registry in place of a dict."""
    tied, untied = (module(tie) for tie in (True, False))
    ties = tieshard.TieRegistry.of(tied)
    assert "lm_head.weight" in ties.expand(["embed_tokens.weight", "layer.weight"])
    assert ties.aliases == {"lm_head.weight": "embed_tokens.weight"} and ties.canonical_of("lm_head.weight") == "embed_tokens.weight"
    tieshard.validate_shared_object(tied, ties)
    names = ["lm_head.weight", "embed_tokens.weight"]
    assert tieshard.TieRegistry.of(untied).expand(names) == names
    with pytest.raises(AssertionError):  # the write-up's looks both names up in named_parameters(), which has one of them: it passes always
        tieshard.validate_shared_object(untied, ties)


def module(tie):
    made = torch.nn.Module()
    made.embed_tokens, made.layer, made.lm_head = torch.nn.Embedding(7, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 7, bias=False)
    if tie:
        made.lm_head.weight = made.embed_tokens.weight
    return made


def check_both_weights_stored(directory):
    """A config that says tied, files with two different weights: accelerate's map of names ends in an error."""
    model = whole(directory)
    with pytest.raises((KeyError, ValueError), match="tied embeddings|lm_head.weight"):
        accelerator(ram_efficient=True).prepare(model, torch.optim.AdamW(model.parameters()))


def check_accelerates_loader(directory):
    """Its loader looks lm_head.weight up in what rank 0 has read from files that store the tie once."""
    from types import SimpleNamespace

    from accelerate.utils.fsdp_utils import fsdp2_load_full_state_dict
    from safetensors.torch import load_file

    model = on_meta(directory)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with pytest.raises(KeyError, match="lm_head.weight"):
        fsdp2_load_full_state_dict(SimpleNamespace(is_main_process=True, device=torch.device("cpu")), model,
                                   load_file(directory / "model.safetensors"))


def check_with_tieshard(directory, other):
    expected = expected_losses(directory, **OPTIONS)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = tieshard.fully_shard(on_meta(directory), mesh)
    tieshard.load(model, directory)
    losses = two_steps(model, tieshard.OptimizerGuard(model).build(torch.optim.AdamW, **OPTIONS))
    assert losses == pytest.approx(expected, rel=1e-5)
    tieshard.validate_shared_object(model)
    # two different weights where the model has one: nothing is chosen silently
    model = tieshard.fully_shard(on_meta(other), mesh)
    with pytest.raises(tieshard.Error) as caught:
        tieshard.load(model, other)
    assert "lm_head.weight" in str(caught.value), caught.value
    assert caught.value.code == "tie-conflict"
    tieshard.load(model, other, on_tie_conflict="canonical")
    tieshard.validate_shared_object(model)


def check_accelerate_with_tieshard(directory):
    for ram_efficient, make in ((True, on_meta), (True, whole), (False, whole)):
        model = make(directory)
        optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
        with tieshard.accelerate_hook(directory):
            model, optimizer = accelerator(ram_efficient).prepare(model, optimizer)
        assert two_steps(model, optimizer) == pytest.approx(expected_losses(directory, **OPTIONS), rel=1e-5), (ram_efficient, make)
        tieshard.validate_shared_object(model)
    model = on_meta(directory)
    with tieshard.accelerate_hook(), pytest.raises(tieshard.UsageError) as caught:
        accelerator(True).prepare(model, torch.optim.AdamW(model.parameters()))
    assert caught.value.code == "still-on-meta"


def check_all(once, equal, other):
    check_both_weights_stored(other)
    for directory in (once, equal):
        check_with_tieshard(directory, other)
    check_accelerate_with_tieshard(once)


def test_on_two_ranks(tmp_path):
    run_on_ranks(2, check_all, save_tied(tmp_path / "once"), save_tied(tmp_path / "equal", "equal"), save_tied(tmp_path / "other", "other"))


def test_accelerates_loader_alone(tmp_path):
    run_on_ranks(1, check_accelerates_loader, save_tied(tmp_path / "once"))
