"""A few steps of training, plain or on ranks with FSDP2, and all that a checkpoint of it has to hold."""

import torch
import torch.distributed as dist
from module_models import class_of, config_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

OPTIMIZERS = {"adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
              "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
              "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)}
LAYERS = {"gpt2": "transformer.h", **dict.fromkeys(("llama", "gpt_oss", "mixtral", "qwen3_moe"), "model.layers")}


def last_dim(parameter):
    return Shard(parameter.dim() - 1)


def build(name, optimizer="adamw", replicas=1, placement=None, seed=5, sharded=True, device="cpu"):
    """A model with values of its own, sharded where there are ranks, and its optimizer."""
    torch.manual_seed(seed)
    with torch.device(device):
        model = class_of(name).from_config(config_of(name))
    if sharded and dist.is_initialized():
        axes = {"dp_replicate": replicas, "dp_shard": dist.get_world_size() // replicas}
        if replicas == 1:
            del axes["dp_replicate"]
        mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        layers = LAYERS.get(model.config.model_type)
        for layer in model.get_submodule(layers) if layers else ():
            fully_shard(layer, mesh=mesh, shard_placement_fn=placement)
        fully_shard(model, mesh=mesh, shard_placement_fn=placement)
    return model, OPTIMIZERS[optimizer](model.parameters())


def loss_of(model, step):
    """On tokens that depend on step and rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    ids = torch.randint(3, 67, (2, 9), generator=torch.Generator().manual_seed(100 * step + rank))
    return model(input_ids=ids, labels=ids).loss


def train(model, optimizer, steps):
    """The losses of these steps."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model.train(), step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def whole_state(model, optimizer):
    """Everything that a checkpoint has, gathered: parameters, buffers, moments, counts."""
    state = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                state[f"{name}.{key}"] = whole(value) if isinstance(value, torch.Tensor) else torch.tensor(value)
    return state


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name
