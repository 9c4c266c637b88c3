"""tieshard for PyTorch users: which names are one weight, and loading, checking and planning that know it.

    import tieshard
    tieshard.doctor("smollm2/", ranks=2)            # would it load? every reason why not
    tieshard.TieRegistry.of(model)                  # which names of a module are one tensor
    ledger = tieshard.load(model, "smollm2/")       # fills it in place, sharded by FSDP2 or not
    tieshard.save(model, optimizer, "run/", step=9) # each rank its part; tieshard.resume goes on from it on any number of ranks
    tieshard.export_hf(model, "out/")               # as save_pretrained, without gathering

The core is C++ and needs no torch; what takes a module imports torch when it is called.
"""

from tieshard import errors
from tieshard._core import Diagnostic, DoctorReport, ShardPlan, TieAlias, TieGroup, TieRegistry, __version__, doctor
from tieshard.checkpoint import Checkpoint, StoredView, open, plan
from tieshard.errors import Error, InputError, InternalError, PeerError, UsageError

__all__ = ["Checkpoint", "Diagnostic", "DoctorReport", "Error", "InputError", "InternalError", "Ledger", "PeerError",
           "ShardPlan", "StoredView", "TieAlias", "TieGroup", "TieRegistry", "UsageError", "__version__", "doctor", "errors",
           "export_hf", "load", "open", "plan", "resume", "save"]

LATER = {"load": "tieshard.load", "Ledger": "tieshard.ledger", "save": "tieshard.saving", "resume": "tieshard.resuming",
         "export_hf": "tieshard.exporting"}  # these import torch


def __getattr__(name):
    if name not in LATER:
        raise AttributeError(f"module 'tieshard' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(LATER[name]), name)
    globals()[name] = value
    return value
