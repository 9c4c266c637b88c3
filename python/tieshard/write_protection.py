"""What an initialiser must leave as it is while it makes buffers: the values of tensors, the parameters' objects, random generators.

Flow:   tieshard.buffers -> [this] -> torch.utils._python_dispatch
Source: initialisers of transformers and reset_parameters() write the weights of their submodules too, and not the buffers alone.
"""

from __future__ import annotations

import contextlib
import random
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from tieshard.local_parts import local_tensor


def memory_of(tensor: torch.Tensor) -> int:
    """The same for all views of one memory, on the meta device too."""
    return local_tensor(tensor).untyped_storage()._cdata


class WriteProtection(TorchDispatchMode):
    """No operation writes to memory in `held` and not in `free`: a copy is written instead, or nothing. `written` is what else was."""

    def __init__(self, held: set[int], free: set[int]):
        super().__init__()
        self.held, self.free, self.written = held, free, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        schema = function._schema
        targets = {}
        for place, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(tensor, torch.Tensor):
                        targets[id(tensor)] = tensor
        protected = {key: tensor for key, tensor in targets.items() if memory_of(tensor) in self.held and memory_of(tensor) not in self.free}
        self.written.update(memory_of(tensor) for key, tensor in targets.items() if key not in protected)
        if not protected:
            return function(*args, **kwargs)
        gives_target = len(schema.returns) == 1 and schema.returns[0].alias_info is not None and schema.returns[0].alias_info.is_write
        if len(targets) == 1 and gives_target:
            return next(iter(protected.values()))
        copies = {key: tensor.clone() for key, tensor in protected.items()}
        back = {id(copy): protected[key] for key, copy in copies.items()}
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: copies.get(id(tensor), tensor), (args, dict(kwargs)))
        return tree_map_only(torch.Tensor, lambda tensor: back.get(id(tensor), tensor), function(*args, **kwargs))


@contextlib.contextmanager
def parameters_set_aside(module: torch.nn.Module):
    """Every parameter is another object over the same memory meanwhile, one that an initialiser of transformers takes for done."""
    before = [(part, dict(part._parameters)) for part in module.modules()]
    copies = {}
    for part, parameters in before:
        for name, parameter in parameters.items():
            if parameter is not None and id(parameter) not in copies:
                copies[id(parameter)] = torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                copies[id(parameter)]._is_hf_initialized = True
            part._parameters[name] = None if parameter is None else copies[id(parameter)]
    try:
        yield
    finally:
        for part, parameters in before:
            part._parameters.update(parameters)


@contextlib.contextmanager
def generators_kept():
    """The default random generators of torch, Python and numpy go on as if nothing had been drawn."""
    numpy = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
