"""tieshard for PyTorch users: which names are one weight, and loading, checking and planning that know it.

    import tieshard
    tieshard.doctor("smollm2/", ranks=2)            # would it load? every reason why not
    tieshard.TieRegistry.of(model)                  # which names of a module are one tensor
    tieshard.fully_shard(model, mesh)               # torch's fully_shard, ties kept
    ledger = tieshard.load(model, "smollm2/")       # fills it in place, sharded or not
    optimizer = tieshard.OptimizerGuard(model).build(torch.optim.AdamW, lr=1e-4)
    tieshard.save(model, optimizer, "run/", step=9) # each rank its part; tieshard.resume goes on from it on any number of ranks
    tieshard.export_hf(model, "out/")               # as save_pretrained, without gathering

The core is C++ and needs no torch; what takes a module imports torch when it is called.
"""

from tieshard import errors
from tieshard._core import Diagnostic, DoctorReport, ShardPlan, TieAlias, TieGroup, TieRegistry, __version__, doctor
from tieshard.checkpoint import Checkpoint, StoredView, open, plan
from tieshard.errors import Error, InputError, InternalError, PeerError, UsageError

__all__ = ["Checkpoint", "Diagnostic", "DoctorReport", "Error", "InputError", "InternalError", "Ledger", "OptimizerGuard", "PeerError",
           "ShardPlan", "Sharding", "StoredView", "TieAlias", "TieGroup", "TieRegistry", "TieshardCallback", "UsageError", "__version__",
           "accelerate_hook", "doctor", "errors", "export_hf", "fully_shard", "load", "open", "plan", "resume", "save", "sharding_of",
           "switch_to_sharded", "validate_shared_object"]

LATER = {  # these import torch, and the callback transformers
    "Ledger": "tieshard.ledger",
    "OptimizerGuard": "tieshard.optimizer_guard",
    "Sharding": "tieshard.sharding_report",
    "TieshardCallback": "tieshard.trainer_callback",
    "accelerate_hook": "tieshard.accelerate_fsdp2",
    "export_hf": "tieshard.exporting",
    "fully_shard": "tieshard.sharding",
    "load": "tieshard.loading",
    "resume": "tieshard.resuming",
    "save": "tieshard.saving",
    "sharding_of": "tieshard.sharding",
    "switch_to_sharded": "tieshard.optimizer_switch",
    "validate_shared_object": "tieshard.module_ties",
}


def __getattr__(name):
    if name not in LATER:
        raise AttributeError(f"module 'tieshard' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(LATER[name]), name)
    globals()[name] = value
    return value
