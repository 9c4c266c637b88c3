"""tieshard.load into modules that torch has sharded: each rank's part is that of the whole, under any placement."""

import pathlib

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_models import class_of, on_meta
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard


def layers_of(model):
    for name, lists in (("llama", "model.layers"), ("opt", "model.decoder.layers"), ("gpt2", "transformer.h"), ("gpt_oss", "model.layers"),
                        ("qwen3_moe", "model.layers")):
        if model.config.model_type == name:
            return model.get_submodule(lists)
    return []


def sharded(folder, name, dtype=torch.float32, placement=None):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = on_meta(folder / name, name, dtype)
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, shard_placement_fn=placement)
    return fully_shard(model, mesh=mesh, shard_placement_fn=placement)


def check_fsdp2(folder, names):
    """Every name: local parts equal those of the whole model; the forward runs, and gives what the whole one gives."""
    for name in names:
        expected = class_of(name).from_pretrained(folder / name)
        model = sharded(folder, name)
        objects = {fqn: id(parameter) for fqn, parameter in model.named_parameters()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ledger = tieshard.load(model, folder / name)
        assert {fqn: id(parameter) for fqn, parameter in model.named_parameters()} == objects
        whole = dict(expected.named_parameters())
        for fqn, parameter in model.named_parameters():
            part = distribute_tensor(whole[fqn].detach(), parameter.device_mesh, parameter.placements).to_local()
            assert torch.equal(parameter.to_local(), part), (name, fqn)
        assert name == "qwen3_moe" or ledger.bytes_read + ledger.bytes_mapped <= sum(p.numel() * 4 for p in whole.values()) // dist.get_world_size() + 40000
        ids = torch.arange(1, 13).reshape(1, 12)
        assert torch.allclose(model.eval()(input_ids=ids).logits, expected(input_ids=ids).logits, atol=1e-5), name
        held = optimizer.param_groups[0]["params"]  # the objects from before the load
        before = [parameter.to_local().clone() for parameter in held]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        assert any(not torch.equal(parameter.to_local(), old) for parameter, old in zip(held, before, strict=True))


def check_other_dim(folder):
    """On the last dim, into bf16 and into memory that is there already."""
    expected = class_of("llama_untied").from_pretrained(folder / "llama_untied")
    model = sharded(folder, "llama_untied", torch.bfloat16, placement=lambda parameter: Shard(parameter.dim() - 1))
    model.to_empty(device="cpu")
    tieshard.load(model, folder / "llama_untied")
    for (fqn, parameter), whole in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert parameter.dtype == torch.bfloat16 and torch.equal(parameter.full_tensor(), whole.detach().to(torch.bfloat16)), fqn


class Weights(torch.nn.Module):
    """Tensors of several ranks whose parts are uneven, empty, strided."""

    def __init__(self, placements, mesh, device):
        super().__init__()
        for name, shape in SHAPES.items():
            fitting = [p if p.is_replicate() or p.dim < len(shape) else Replicate() for p in placements]
            whole = torch.empty(shape, device="meta")
            part = distribute_tensor(whole, mesh, fitting) if not any(isinstance(p, _StridedShard) for p in fitting) else strided(
                whole, mesh, fitting)
            self.register_parameter(name, torch.nn.Parameter(part))
        if device != "meta":
            self.to_empty(device=device)


def strided(whole, mesh, placements):
    from tieshard.local_parts import indices_of

    class Described:
        shape, device_mesh = whole.shape, mesh

    Described.placements = placements
    sizes = [len(held) for held in indices_of(Described, "w")]
    return DTensor.from_local(torch.empty(sizes, device="meta"), mesh, placements, run_check=False, shape=whole.shape,
                              stride=whole.stride())


SHAPES = {"a": (7, 5), "b": (3,), "c": (1, 9), "d": (5, 6, 8), "e": (16, 4), "f": ()}


def check_placements(folder):
    """All placements of a 1-D and a 2-D mesh, from meta and in place: what distribute_tensor gives of the whole."""
    whole = {name: torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1 for name, shape in SHAPES.items()}
    world = dist.get_world_size()
    meshes = {1: init_device_mesh("cpu", (world,))}
    if world % 2 == 0:
        meshes[2] = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    one = [Replicate(), Shard(0), Shard(1), Shard(2)]
    for count, mesh in meshes.items():
        for placements in [[p] for p in one] if count == 1 else [[p, q] for p in one for q in one]:
            for device in ("meta", "cpu"):
                model = Weights(placements, mesh, device)
                tieshard.load(model, folder)
                for name, parameter in model.named_parameters():
                    part = distribute_tensor(whole[name], mesh, parameter.placements).to_local()
                    assert torch.equal(parameter.to_local(), part), (placements, name, device)


def check_strided(folder):
    """FSDP over tensor parallelism, both on dim 0: parts of several runs, against torch's own shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    model = Weights(placements, mesh, "meta")
    tieshard.load(model, folder)
    whole = torch.arange(64, dtype=torch.float32).reshape(16, 4) + 1
    assert torch.equal(model.e.full_tensor(), whole)
    assert torch.equal(model.a.full_tensor(), torch.arange(35, dtype=torch.float32).reshape(7, 5) + 1)


def check_a_lost_tie_is_refused(folder):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = on_meta(folder / "llama_tied", "llama_tied")
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    fully_shard(model, mesh=mesh)
    with pytest.raises(tieshard.errors.SharedObjectError) as caught:
        tieshard.load(model, folder / "llama_tied")
    assert caught.value.code == "tie-not-shared" and "lm_head.weight" in caught.value.where


def check_what_is_gathered_is_freed_first(folder):
    """After a forward without a backward the root's parameters are whole, in memory that the next gather writes over."""
    expected = class_of("llama_tied").from_pretrained(folder / "llama_tied")
    ids = torch.arange(1, 13).reshape(1, 12)
    for wrap in (torch.compile, lambda model: model, torch.nn.parallel.DistributedDataParallel):
        model = sharded(folder, "llama_tied") if wrap is not torch.nn.parallel.DistributedDataParallel else on_meta(
            folder / "llama_tied", "llama_tied").to_empty(device="cpu")
        tieshard.load(model, folder / "llama_tied")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model(input_ids=ids)
        ledger = tieshard.load(wrap(model), folder / "llama_tied", rename=False)  # which looks at no state_dict(): that would free it
        assert ledger.find("lm_head.weight").name == "model.embed_tokens.weight" and not ledger.warnings
        model(input_ids=ids, labels=ids).loss.backward()
        for (fqn, parameter), whole in zip(model.named_parameters(), expected.parameters(), strict=True):
            held = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            assert torch.equal(held, whole), fqn


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("plain")
    save_file({name: torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1 for name, shape in SHAPES.items()},
              folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def on_three(models, plain):
    """Uneven and empty parts."""
    check_fsdp2(models, ("llama_tied", "gpt2", "gpt_oss_tied", "opt", "qwen3_moe"))
    check_placements(plain)


def on_four(models, plain):
    """A mesh of two axes."""
    check_fsdp2(models, ("llama_tied",))
    check_other_dim(models)
    check_placements(plain)
    check_strided(plain)
    check_a_lost_tie_is_refused(models)
    check_what_is_gathered_is_freed_first(models)


@pytest.mark.parametrize(("ranks", "checks"), [(3, on_three), (4, on_four)], ids=["three", "four"])
def test_parts_are_those_of_the_whole(models, plain, ranks, checks):
    run_on_ranks(ranks, checks, pathlib.Path(models), plain)
