"""The slots of an optimizer, told apart: which it may step, and why not the others.

Flow:   torch.optim.Optimizer, tieshard.fsdp_state -> [this] -> tieshard.optimizer_guard
"""

from __future__ import annotations

import typing

from tieshard.errors import Diagnostic, GuardError

REMEDIES = {
    "managed": "managed and trainable, as it should be",
    "original": "the whole parameter from before fully_shard, which made another object of it; hand the optimizer to OptimizerGuard.adopt(), or "
                "build it after fully_shard",
    "stale": "stale: the module got another tensor under this name since, or lost it; change modules before fully_shard, and build the "
             "optimizer after it",
    "foreign": "foreign: not a parameter of the sharded module; register it in the module before fully_shard; where the module's tensors were "
               "others when the optimizer was built, give adopt() those",
    "unmanaged": "not managed: no fully_shard call owns it (a partial wrap left it out, or it was registered after); register it before "
                 "fully_shard, or freeze it with requires_grad_(False), or, of one in ignored_params, register_managed it",
    "frozen": "frozen: requires_grad is False; unfreeze it, or take it out with OptimizerGuard.drop_frozen(optimizer)",
    "duplicate": "listed before, and would be stepped twice; list each parameter in one group only",
    "left-out": "managed and trainable, but in no group: it would never be trained; add it with add_param_group, or freeze it",
    "foreign-gradient": "its gradient is not this rank's part, reduced over the ranks: it is from before fully_shard, or was put there by hand; "
                        "optimizer.zero_grad() first",
    "foreign-state": "the optimizer keeps state of it that cannot be cut as the parameter was; build the optimizer before its first step, or "
                     "after fully_shard",
}


class Slot(typing.NamedTuple):
    """One place in an optimizer. group -1: a parameter of the module that is in none."""

    group: int
    slot: int
    name: str
    kind: str  #: a key of REMEDIES
    shape: tuple[int, ...]  #: whole
    local_shape: tuple[int, ...]  #: this rank's part
    detail: str = ""

    def reason(self) -> str:
        place = "no group" if self.group < 0 else f"group {self.group}, slot {self.slot}"
        return f"{self.name} ({place}): {REMEDIES[self.kind]}" + (f"; {self.detail}" if self.detail else "")


class SlotReport(list):
    """All slots of an optimizer. Its repr is a table."""

    def __repr__(self) -> str:
        return "\n".join(f"group {each.group} slot {each.slot}  {each.name}  {each.kind}  {list(each.shape)} -> {list(each.local_shape)}"
                         for each in self)


def refuse(offenders: typing.Sequence[Slot]) -> GuardError:
    """One error that lists them all."""
    where = ", ".join(each.name for each in offenders[:4]) + (f" and {len(offenders) - 4} more" if len(offenders) > 4 else "")
    return GuardError(Diagnostic("optimizer-parameter", what="an optimizer holds parameters that it must not step", where=where,
                                 why="expected each trainable parameter that fully_shard manages, once; got\n"
                                 + "\n".join(f"  {each.reason()}" for each in offenders),
                                 fix="OptimizerGuard(model).build(torch.optim.AdamW, lr=..) after fully_shard does all of this"))
