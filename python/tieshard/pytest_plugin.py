"""For a project's own tests: ties that are one object, optimizers that hold what they have to. pytest finds it by the wheel's entry point.

Flow:   pytest -> [this] -> tieshard.module_ties, tieshard.optimizer_guard
Source: the CI guards of the write-ups: a tie is one Python object; a stray parameter is refused.
"""

from __future__ import annotations

import pytest


def check_tied(model, *names: str) -> None:
    """Fails unless `names` are one tensor of `model`; without names, unless all ties hold that the model's config says it has.

    A model that has no tie at all fails too: such a test could not fail otherwise.
    """
    from tieshard.module_ties import declared_ties, holders, validate_shared_object

    if not names:
        assert declared_ties(model), f"{type(model).__name__} says nothing of ties: name them, assert_tied(model, 'a.weight', 'b.weight')"
        validate_shared_object(model)
        return
    where = holders(model)
    missing = [name for name in names if name not in where]
    assert len(set(names)) > 1 and not missing, f"expected two or more different names of parameters, got {names}; not in the model: {missing}"
    first, *others = ((name, where[name][0]._parameters[where[name][1]]) for name in names)
    for name, parameter in others:
        assert parameter is first[1], f"{name} is another object than {first[0]}: they are not tied"


def check_all_managed(model, optimizer) -> None:
    """Fails unless `optimizer` holds each trainable parameter of `model` once, and nothing else; sharded or not."""
    from tieshard.fsdp_state import is_sharded
    from tieshard.optimizer_guard import OptimizerGuard

    guard = OptimizerGuard(model) if is_sharded(model) else OptimizerGuard.of_unsharded(model)
    guard.require_admissible(optimizer)


@pytest.fixture
def assert_tied():
    """assert_tied(model) or assert_tied(model, "model.embed_tokens.weight", "lm_head.weight")"""
    return check_tied


@pytest.fixture
def assert_all_managed():
    """assert_all_managed(model, optimizer)"""
    return check_all_managed
