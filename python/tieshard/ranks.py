"""The ranks of a job, and stages that all of them pass or none does.

Flow:   tieshard.save, tieshard.resume, tieshard.export_hf -> [this] -> torch.distributed, the default group
Source: runtime/mesh/agree.h: an error of one rank reaches all at the end of its stage.
"""

from __future__ import annotations

import typing

import torch.distributed as dist

from tieshard.errors import Diagnostic, PeerError


class Failure(typing.NamedTuple):
    """What a rank tells the others in the place of a result."""

    what: str


def this_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def rank_count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def agree(stage: str, work: typing.Callable[[], typing.Any]) -> list:
    """Runs work() and gives what it returned on each rank, by rank. A collective.

    Where it raised on this rank that goes on; where it raised on another one, PeerError peer-failed says which and why.
    """
    error = result = None
    try:
        result = work()
    except Exception as raised:  # noqa: BLE001 (of any kind: the others would wait for this rank)
        error, result = raised, Failure(str(raised))
    results = gather(result)
    if error is not None:
        raise error
    for rank, other in enumerate(results):
        if isinstance(other, Failure):
            raise PeerError(Diagnostic("peer-failed", what="another rank failed first", where=f"rank {this_rank()}, {stage}",
                                       why=f"rank {rank} says: {other.what}", fix="mend what that rank says"))
    return results


def on_first(stage: str, work: typing.Callable[[], typing.Any]) -> typing.Any:
    """Runs work() on rank 0 alone and gives what it returned, on every rank. A collective; errors as agree()."""
    return agree(stage, lambda: work() if this_rank() == 0 else None)[0]


def gather(value) -> list:
    """`value` of each rank. A collective."""
    if rank_count() == 1:
        return [value]
    values = [None] * rank_count()
    dist.all_gather_object(values, value)
    return values
