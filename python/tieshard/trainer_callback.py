"""transformers' Trainer, watched: ties are one object, and its optimizer holds what it has to, at the start and at every save.

Flow:   transformers.Trainer -> [this] -> tieshard.optimizer_guard, tieshard.module_ties, tieshard.doctor
"""

from __future__ import annotations

import os

import torch
from transformers import TrainerCallback

from tieshard._core import doctor
from tieshard.errors import Diagnostic, Error, InputError
from tieshard.fsdp_state import is_sharded
from tieshard.module_ties import validate_shared_object
from tieshard.optimizer_guard import OptimizerGuard


class TieshardCallback(TrainerCallback):
    """Trainer(model=model, args=args, callbacks=[tieshard.TieshardCallback()])

    Before the first step: each tie of the model is one object (SharedObjectError), and the optimizer is adopted by an OptimizerGuard,
    which looks at every step (GuardError). After each save: what was written would load again, ties and all (InputError with the
    doctor's first finding). doctor: False leaves the last one out. Every rank raises what one of them has found.
    """

    def __init__(self, doctor: bool = True):
        self.doctor = doctor
        self.guard: OptimizerGuard | None = None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **more):
        validate_shared_object(model)
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self.guard = OptimizerGuard(model) if is_sharded(model) else OptimizerGuard.of_unsharded(model)
        if inner is not None:
            self.guard.adopt(inner)

    def on_save(self, args, state, control, model=None, **more):
        validate_shared_object(model)
        if self.doctor:
            finding = self.of_first(state.is_world_process_zero, os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
            if finding is not None:
                raise InputError(finding)

    def of_first(self, first: bool, directory: str) -> Diagnostic | None:
        """What the doctor says of the save, on every rank: one that knew it alone would leave the others waiting."""
        found = [why_not(directory) if first else None]
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            torch.distributed.broadcast_object_list(found, src=0)
        return found[0]


def why_not(directory: str) -> Diagnostic | None:
    """The doctor's first error; None where the save would load, or holds no whole model (an adapter, shards)."""
    if not os.path.exists(os.path.join(directory, "config.json")):
        return None
    try:
        report = doctor(directory)
    except Error as error:
        return error.diagnostic
    worst = next((each for each in report.findings if each.level == "error"), None)
    return worst and Diagnostic(worst.code, what=worst.what, where=worst.where, why=worst.why,
                                fix=f"{worst.fix}; this is what the Trainer has just saved")
