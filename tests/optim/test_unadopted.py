"""`accelerate_optimizer` leaves alone what it cannot make faster, and says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim.adoption import make, network, train
from torch import nn
from torch.optim import lr_scheduler

from gallery_lib.optim.adoption import accelerate_optimizer


def unchanged(optimizer: torch.optim.Optimizer) -> str:
    """Return what is said of an optimizer that stays as it is."""
    before = dict(vars(optimizer)), type(optimizer)
    said = accelerate_optimizer(optimizer)
    assert (dict(vars(optimizer)), type(optimizer)) == before
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("foreach", True),
        ("foreach", False),
        ("fused", True),
        ("fused", False),
        ("differentiable", True),
        ("capturable", True),
    ],
)
def test_a_form_that_the_user_has_chosen_is_kept(option: str, value: bool) -> None:
    assert (
        unchanged(make("Adam", network(), **{option: value}))
        == f"Adam stays as it is: {option}={value} was chosen."
    )
    groups = [
        {"params": [nn.Parameter(torch.ones(2))]},
        {"params": [nn.Parameter(torch.ones(2))], option: value},
    ]
    assert f"{option}={value} was chosen" in unchanged(torch.optim.Adam(groups))


class Mine(torch.optim.AdamW):
    pass


class Adam(torch.optim.Adam):
    """Optimizer with the same name as torch's."""


def test_other_classes_stay_as_they_are() -> None:
    for cls in (Mine, Adam):
        assert "is no class of torch.optim" in unchanged(cls(network().parameters()))
    assert (
        unchanged(torch.optim.NAdam(network().parameters()))
        == "NAdam stays as it is: there is no faster form of it here."
    )
    assert "no faster form" in unchanged(torch.optim.LBFGS(network().parameters()))
    assert "no faster form" in unchanged(torch.optim.SparseAdam(network().parameters()))


def test_what_brings_nothing_is_said() -> None:
    assert "its options have no form in one pass over memory" in unchanged(
        make("AdamW", network(), amsgrad=True)
    )
    assert "its options have no form in one pass over memory" in unchanged(
        make("AdamW", network(), lr=torch.tensor(0.1))
    )
    assert "these are torch.float64" in unchanged(make("AdamW", network(torch.float64)))
    assert "its parameters are torch.bfloat16" in unchanged(
        make("Adagrad", network(torch.bfloat16))
    )
    assert "its parameters are on cpu, meta" in unchanged(
        torch.optim.AdamW([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))])
    )


def test_a_step_that_somebody_has_replaced_is_kept() -> None:
    import functools
    import types

    def counted(step: Any, calls: list[int]) -> Any:
        @functools.wraps(step)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return step(*args, **kwargs)

        return wrapper

    for scheduled in (False, True):
        calls: list[int] = []
        model = network()
        optimizer = make("SGD", model)
        if scheduled:
            lr_scheduler.StepLR(optimizer, 3)
        optimizer.step = counted(optimizer.step, calls)  # type: ignore[method-assign]
        assert unchanged(optimizer) == "SGD stays as it is: its `step` was replaced."
        train(model, optimizer, range(2))
        assert len(calls) == 2
    optimizer = make("SGD", network())
    optimizer.step = types.MethodType(lambda self, closure=None: None, optimizer)  # type: ignore[method-assign]
    lr_scheduler.StepLR(optimizer, 3)
    assert "its `step` was replaced" in unchanged(optimizer)
