"""transformers' Trainer, watched: ties are one object, and its optimizer holds what it has to, at the start and at every save.

Flow:   transformers.Trainer -> [this] -> tieshard.optimizer_guard, tieshard.module_ties, tieshard.doctor
"""

from __future__ import annotations

import os

from transformers import TrainerCallback

from tieshard._core import doctor
from tieshard.errors import Diagnostic, InputError
from tieshard.fsdp_state import is_sharded
from tieshard.module_ties import validate_shared_object
from tieshard.optimizer_guard import OptimizerGuard


class TieshardCallback(TrainerCallback):
    """Trainer(model=model, args=args, callbacks=[tieshard.TieshardCallback()])

    Before the first step: each tie of the model is one object (SharedObjectError), and the optimizer is adopted by an OptimizerGuard,
    which looks at every step (GuardError). After each save: what was written would load again, ties and all (InputError with the
    doctor's first finding). doctor: False leaves the last one out. Every rank does the first two; the process that saves does the last.
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
        directory = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if not self.doctor or not state.is_world_process_zero or not os.path.exists(os.path.join(directory, "config.json")):
            return
        report = doctor(directory)
        if not report:
            worst = report.findings[0]
            raise InputError(Diagnostic(worst.code, what=worst.what, where=worst.where, why=worst.why,
                                        fix=f"{worst.fix}; this is what the Trainer has just saved"))
