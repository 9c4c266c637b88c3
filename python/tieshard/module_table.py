"""The parameters of a torch module as plain rows, which is all that core knows of it.

Flow:   torch.nn.Module -> [this] -> tieshard._core (TieRegistry, ShardPlan, ModelSource)
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    import torch

WRAPPER_PARTS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def plain_name(name: str) -> str:
    """A parameter's name without the parts that wrappers of torch put in."""
    for part in WRAPPER_PARTS:
        name = name.replace(part, "")
    return name


def parameter_table(module: torch.nn.Module) -> list[tuple[str, list[int], str, int]]:
    """Rows (name, whole shape, dtype, identity) of all names of all parameters, in registration order.

    Two rows of one identity are one tensor object under two names. Parameters of no floating type are left out: stored_values loads them.
    """
    return [(plain_name(name), list(parameter.shape), str(parameter.dtype), id(parameter))
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if parameter.dtype.is_floating_point]
