"""The operator `gallery::optimizer_step_`: steps of torch's and timm's optimizers, and refusals."""

from __future__ import annotations

import pytest
import torch
from kernels.optimizer_cases import CASES, Case
from refusal import refused

from gallery_lib.kernels.optimizer_reference import COUNTS_STEPS, Hyperparameters
from gallery_lib.kernels.optimizer_step import optimizer_step

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


def torch_optimizer(case: Case, parameters):
    h = case.hyperparameters
    common = {"lr": h.lr, "weight_decay": h.weight_decay}
    adam = common | {"betas": (h.beta1, h.beta2), "eps": h.eps}
    if case.rule == "lamb":
        from timm.optim import Lamb

        return Lamb(parameters, **adam, max_grad_norm=None, always_adapt=True)
    common["maximize"] = h.maximize
    if case.rule == "sgd":
        return torch.optim.SGD(parameters, **common, momentum=h.momentum, nesterov=h.nesterov)
    if case.rule == "rmsprop":
        return torch.optim.RMSprop(
            parameters,
            **common,
            alpha=h.beta2,
            eps=h.eps,
            momentum=h.momentum,
            centered=case.present[2],
        )
    if case.rule == "adamw":
        return torch.optim.AdamW(parameters, **adam, maximize=h.maximize)
    return torch.optim.RAdam(
        parameters, **adam, maximize=h.maximize, decoupled_weight_decay=h.decoupled_weight_decay
    )


# Importing timm takes seconds.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=pytest.mark.slow if case.rule == "lamb" else ())
        for case in CASES
    ],
)
def test_the_reference_takes_the_steps_of_torchs_optimizer(case):
    torch.manual_seed(0)
    theirs = [
        torch.randn(7, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(5, dtype=torch.float64, requires_grad=True),
    ]
    ours = [t.detach().clone() for t in theirs]
    states = [[torch.zeros_like(w) for w in ours] if present else None for present in case.present]
    steps = [torch.zeros(()) for _ in ours]
    optimizer = torch_optimizer(case, theirs)
    for _ in range(12):
        gradients = [torch.randn_like(w) for w in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer_step(case.rule, ours, gradients, states, case.hyperparameters, steps=steps)
        torch.testing.assert_close(ours, [t.detach() for t in theirs], rtol=1e-11, atol=1e-12)


def arguments_of_the_operator(case: Case):
    weights = [torch.randn(5), torch.randn(3, 2)]
    states = [torch.rand_like(w) for present in case.present if present for w in weights]
    present = [k for k, there in enumerate(case.present) if there]
    steps = [torch.ones(()), torch.ones(())] if case.rule in COUNTS_STEPS else []
    numbers, switches = [1e-2, 1e-2, 0.9, 0.99, 1e-8, 0.9], [False, False, False, True]
    scalars = (torch.zeros((), dtype=torch.int64), torch.tensor(2.0), torch.tensor(0.0), None, None)
    return (
        case.rule,
        weights,
        [torch.randn_like(w) for w in weights],
        states,
        present,
        [],
        steps,
        *scalars,
        numbers,
        switches,
    )


@pytest.mark.slow
@EACH_CASE
def test_opcheck(case):
    torch.library.opcheck(torch.ops.gallery.optimizer_step_, arguments_of_the_operator(case))


def test_versions_of_what_is_changed_are_counted():
    weight, gradient = torch.ones(3), torch.ones(3)
    optimizer_step("sgd", [weight], [gradient], [None], Hyperparameters(lr=0.1))
    assert weight._version > 0
    assert torch.equal(weight, torch.full((3,), 0.9))


@pytest.mark.parametrize(
    ("changed", "parameter", "values"),
    [
        ({"rule": "lam"}, "rule", ["'lam'", "`lamb`"]),
        ({"states": [None]}, "states", ["takes 2", "got 1"]),
        ({"gradients": []}, "gradients", ["1 weights", "0 gradients"]),
        ({"gradients": [torch.ones(3).double()]}, "gradients", ["torch.float32", "torch.float64"]),
        ({"gradients": [torch.ones(2)]}, "gradients", ["(3,)", "(2,)"]),
        (
            {"states": [[torch.ones(3)], [torch.ones(3).half()]]},
            "states[1]",
            ["torch.float32", "torch.float16"],
        ),
        ({"steps": []}, "steps", ["0 steps"]),
        ({"steps": [torch.ones(2)]}, None, ["steps", "scalars"]),
        ({"found_inf": torch.tensor(0)}, "found_inf", ["float32", "torch.int64"]),
        ({"skipped": torch.tensor(0.0)}, "skipped", ["int64", "torch.float32"]),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, parameter, values):
    good = {
        "rule": "adamw",
        "weights": [torch.ones(3)],
        "gradients": [torch.ones(3)],
        "states": [[torch.ones(3)], [torch.ones(3)]],
        "hyperparameters": Hyperparameters(lr=0.1),
        "steps": [torch.ones(())],
    }
    optimizer_step(**good)
    with refused(parameter, *values):
        optimizer_step(**good | changed)
