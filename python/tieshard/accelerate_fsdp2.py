"""accelerate's FSDP2 with tieshard in place of what fails: its wrapping, its loader, its switch of the optimizer's parameters.

Flow:   accelerate.Accelerator.prepare -> [this] -> tieshard.sharding, tieshard.loading, tieshard.optimizer_guard
Source: accelerate 1.15, Accelerator._prepare_fsdp2 and utils/fsdp_utils.py; issues #3870, #3838, #3821.
"""

from __future__ import annotations

import contextlib
import os
import warnings

import torch

from tieshard.errors import Diagnostic, UsageError
from tieshard.fsdp_state import is_sharded
from tieshard.loading import load
from tieshard.optimizer_guard import OptimizerGuard
from tieshard.sharding import fully_shard


@contextlib.contextmanager
def accelerate_hook(checkpoint: str | os.PathLike | None = None):
    """Within it, Accelerator.prepare() with FSDP2 shards with tieshard.fully_shard, loads with tieshard.load, and adopts the optimizer.

        with tieshard.accelerate_hook("smollm2/"):
            model, optimizer = accelerator.prepare(model, optimizer)

    checkpoint: directory that every rank reads its parts from, so that the model can come from the meta device; needed there and with
    cpu_ram_efficient_loading. Without it each rank's own values are sharded. The optimizer may be built before, and have stepped.
    Leaving it puts accelerate's own functions back; what was prepared stays. Every rank.

    Raises UsageError wrong-state where this accelerate has no such functions; what fully_shard, load and OptimizerGuard raise.
    """
    import accelerate.accelerator as accelerator_module

    accelerator = accelerator_module.Accelerator
    names = ("fsdp2_prepare_model", "fsdp2_switch_optimizer_parameters")
    missing = [name for name in names if not hasattr(accelerator_module, name)]
    if missing or not hasattr(accelerator, "_prepare_fsdp2"):
        raise UsageError(Diagnostic("wrong-state", what="this accelerate prepares FSDP2 in another way than the one that tieshard knows",
                                    where=f"accelerate {accelerator_module.__dict__.get('__version__', '')}".strip(),
                                    why=f"expected what accelerate 1.15 has; missing: {', '.join(missing) or '_prepare_fsdp2'}",
                                    fix="pip install accelerate==1.15.0, or call tieshard.fully_shard, load and OptimizerGuard yourself"))
    own = {name: getattr(accelerator_module, name) for name in names}, accelerator._prepare_fsdp2
    preparation = Preparation(checkpoint, own[1])
    accelerator_module.fsdp2_prepare_model = preparation.prepare_model
    accelerator_module.fsdp2_switch_optimizer_parameters = preparation.switch
    accelerator._prepare_fsdp2 = lambda self, *objects: preparation.run(self, *objects)
    try:
        yield
    finally:
        for name, function in own[0].items():
            setattr(accelerator_module, name, function)
        accelerator._prepare_fsdp2 = own[1]


class Preparation:
    """One call of prepare(): what its parts have to know of each other."""

    def __init__(self, checkpoint: str | os.PathLike | None, prepare_fsdp2):
        self.checkpoint, self.prepare_fsdp2 = checkpoint, prepare_fsdp2
        self.held: dict[torch.optim.Optimizer, list[list[torch.Tensor]]] = {}
        self.originals: dict[str, torch.Tensor] = {}
        self.switched: list[torch.optim.Optimizer] = []
        self.ignored: set[torch.nn.Parameter] = set()
        self.model: torch.nn.Module | None = None

    def run(self, accelerator, *objects):
        """accelerate takes the parameters out of the optimizers before it shards, and with them the way to their state."""
        optimizers = [plain(each) for each in objects if isinstance(plain(each), torch.optim.Optimizer)]
        modules = [each for each in objects if isinstance(each, torch.nn.Module)]
        for module in modules:
            if not is_sharded(module):
                require_trainable(module, optimizers)  # while nothing is sharded yet
        self.held = {each: [list(group["params"]) for group in each.param_groups] for each in optimizers}
        self.originals = {name: parameter for each in modules for name, parameter in each.named_parameters()}
        try:
            return self.prepare_fsdp2(accelerator, *objects)
        except BaseException:
            for optimizer, groups in self.held.items():
                put_back(optimizer, groups)
            raise
        finally:
            self.held, self.originals, self.switched = {}, {}, []

    def prepare_model(self, accelerator, model: torch.nn.Module) -> torch.nn.Module:
        import accelerate.utils.fsdp_utils as fsdp_utils

        plugin = accelerator.state.fsdp_plugin
        mesh = getattr(accelerator, "torch_device_mesh", None)
        if mesh is not None:
            mesh = mesh[tuple(accelerator.parallelism_config.fsdp_dim_names)]
        ignored = None
        if plugin.ignored_modules is not None:
            ignored = self.ignored = fsdp_utils.get_parameters_from_modules(plugin.ignored_modules, model, accelerator.device)
        on_meta = any(parameter.is_meta for parameter in model.parameters())
        if (on_meta or plugin.cpu_ram_efficient_loading) and self.checkpoint is None:
            raise UsageError(Diagnostic(
                "still-on-meta", what="a model is to be sharded whose values not every rank has", where=type(model).__name__,
                why="expected a checkpoint to load from: " + ("parameters are on the meta device" if on_meta else
                                                               "with cpu_ram_efficient_loading only rank 0 has read the files"),
                fix='name it: tieshard.accelerate_hook("DIR"), or set fsdp_cpu_ram_efficient_loading to false'))
        if accelerator.mixed_precision != "no":  # as accelerate does: the optimizer steps in float32
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.dtype != torch.float32 and parameter.is_floating_point():
                    parameter.data = parameter.data.to(torch.float32)
        fully_shard(model, mesh or self.mesh_of(accelerator), units=self.units_of(plugin, model), reshard_after_forward=plugin.reshard_after_forward,
                    mp_policy=plugin.mixed_precision_policy, offload_policy=plugin.cpu_offload or None, ignored_params=ignored)
        if self.checkpoint is not None:
            load(model, self.checkpoint)
        self.model = model
        return model

    def mesh_of(self, accelerator):
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(accelerator.device.type, (accelerator.num_processes,))

    def units_of(self, plugin, model: torch.nn.Module) -> list[torch.nn.Module] | None:
        """The modules that accelerate's policy wraps; None: the model's blocks."""
        import accelerate.utils.fsdp_utils as fsdp_utils

        policy = fsdp_utils.fsdp2_prepare_auto_wrap_policy(plugin, model)
        if policy is None:
            return None
        return [module for module in model.modules() if module is not model and policy(module)]

    def switch(self, optimizer, mapping: dict) -> None:
        """In place of accelerate's switch, whose mapping is by data_ptr: 0 for all of the meta device, and without the state."""
        optimizer = plain(optimizer)
        for each, groups in self.held.items():
            if each not in self.switched:
                put_back(each, groups)
        guard = OptimizerGuard(self.model)
        guard.register_managed(self.ignored)  # the caller's choice: they are whole, and reduced by the caller
        guard.beside = [each for each in self.held if each is not optimizer]
        guard.adopt(optimizer, self.originals)
        self.switched.append(optimizer)


def require_trainable(module: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """What adopt would refuse later. Frozen parameters, which accelerate leaves in the optimizer, are taken out of it."""
    for optimizer in optimizers:
        frozen = OptimizerGuard.drop_frozen(optimizer)
        if frozen:
            warnings.warn(f"{len(frozen)} frozen parameters were taken out of {type(optimizer).__name__}; add_param_group takes them back when "
                          "they are unfrozen", stacklevel=4)
    for optimizer in optimizers:
        guard = OptimizerGuard.of_unsharded(module)
        guard.beside = [each for each in optimizers if each is not optimizer]
        guard.require_admissible(optimizer)


def plain(optimizer):
    """The torch optimizer within accelerate's."""
    inner = getattr(optimizer, "__dict__", {}).get("optimizer")
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def put_back(optimizer: torch.optim.Optimizer, groups: list[list[torch.Tensor]]) -> None:
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        group["params"][:] = parameters
