"""Where this rank's random generator stands, as text.

Flow:   tieshard.save, tieshard.resume -> [this] -> torch.get_rng_state, torch.cuda.get_rng_state
Source: runtime/state/generator_state.h: the same bytes, since LibTorch's generators are these.
"""

from __future__ import annotations

import torch

from tieshard.errors import Diagnostic, InputError
from tieshard.local_parts import local_tensor


def device_of(module: torch.nn.Module) -> torch.device:
    """That the module computes on."""
    return next((local_tensor(each).device for each in module.parameters()), torch.device("cpu"))


def generator_state(module: torch.nn.Module) -> str:
    """In hexadecimal, of the default generator of the module's device."""
    device = device_of(module)
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return bytes(state.tolist()).hex()


def set_generator_state(module: torch.nn.Module, text: str) -> None:
    """Raises InputError manifest-malformed for a text that is no state of this device's generator."""
    device = device_of(module)
    state = torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
    try:
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
    except RuntimeError as error:
        raise InputError(Diagnostic("manifest-malformed", what="a saved random generator is not one of this device",
                                    where=f"trainer.json, generators, {device}", why=str(error).splitlines()[0],
                                    fix="pass generators=False, and seed them yourself")) from error
