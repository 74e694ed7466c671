"""`gallery::optimizer_step_`, each way: against float64, torch's and timm's steps."""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.optimizer_cases import BY_NAME, CASES, Case, bounds, step_of
from kernels.ways import KERNELS, OnDevice, OnHost, tensors_in
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gallery_lib.kernels.optimizer_step import (
    COUNTS_STEPS,
    NUMBERS,
    Hyperparameters,
    optimizer_step,
)
from gallery_lib.kernels.runtime.launch import ELEMENTS, FEW_TENSORS, MANY_TENSORS

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


def copied(arguments, dtype=None):
    return tree_map_only(Tensor, lambda tensor: tensor.to(dtype, copy=True), arguments)


def exact(arguments):
    """Return the arguments in float64 after the step that the reference takes with them."""
    wide = copied(arguments, torch.float64)
    torch.ops.gallery.optimizer_step_(*wide)
    return wide


def states_of(case: Case, arguments, place: int):
    """Return the states of one of the tensors; None where the rule does without."""
    states = iter(arguments[3][place :: len(arguments[1])])
    return [next(states) if there else None for there in case.present]


@KERNELS
@EACH_CASE
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(draw.SIZES, min_size=1, max_size=3),
    dtype=st.sampled_from(list(ELEMENTS)),
    offsets=st.tuples(draw.OFFSETS, draw.OFFSETS),
    seed=st.integers(0, 2**16),
    exponent=st.sampled_from([-140.0, -70.0, -12.0, 0.0, 6.0]),
    step=st.sampled_from([0, 1, 4, 5, 6, 100, 10_000]),
    gradient_scale=st.sampled_from([None, 1.0, 4.0, 3.0]),
    schedule=draw.SCHEDULES,
)
def test_every_element_is_within_the_bound_of_float64(
    way, case, sizes, dtype, offsets, seed, exponent, step, gradient_scale, schedule
):
    device = way(schedule, offsets[0])
    drawn = (sizes, dtype, offsets, seed, exponent, step, device)
    arguments = step_of(case, *drawn, gradient_scale=gradient_scale, found_inf=0.0)
    expected, before = exact(arguments), copied(arguments)
    device.call("optimizer_step_", *arguments)
    assert all(map(torch.equal, arguments[2], before[2]))  # gradients stay
    assert [count.item() for count in arguments[5]] == [step + 1] * len(arguments[5])
    old, u = copied(before, torch.float64), draw.UNIT_ROUNDOFF[dtype]
    for i, weight in enumerate(expected[1]):
        of_weight, of_states = bounds(
            case, old[1][i], old[2][i] / (gradient_scale or 1.0), states_of(case, old, i),
            weight, states_of(case, expected, i), step + 1,
        )  # fmt: skip
        if dtype is not torch.float32:
            of_weight = of_weight + u * (weight.abs() + of_weight) + draw.SMALLEST[dtype]
        assert ((arguments[1][i].double() - weight).abs() <= of_weight).all()
        found = states_of(case, arguments, i)
        for ours, state, bound in zip(found, states_of(case, expected, i), of_states, strict=True):
            assert state is None or ((ours.double() - state).abs() <= bound).all()


@KERNELS
@EACH_CASE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_changes_no_bit(way, case, dtype):
    device = way()
    arguments = step_of(case, [5, 0, 8195], dtype, device=device, found_inf=1.0)
    arguments[2][0][2] = math.inf
    before = copied(arguments)
    device.call("optimizer_step_", *arguments)
    for now, old in zip(tensors_in(arguments), tensors_in(before), strict=True):
        assert torch.equal(now.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize(
    ("way", "tensors"),
    [
        pytest.param(OnHost, 2 * FEW_TENSORS + 4, id="host"),
        pytest.param(OnDevice, MANY_TENSORS + 4, id="device", marks=pytest.mark.gpu),
    ],
)
@EACH_CASE
def test_more_tensors_than_fit_one_launch_and_a_learning_rate_on_the_device(case, way, tensors):
    device, rate = way(), case.hyperparameters.lr
    sizes = [1 + i % 5 for i in range(tensors)]
    arguments = step_of(case, sizes, device=device, learning_rate=rate)
    expected = exact((*arguments[:8], None, *arguments[9:]))
    arguments[9][NUMBERS.index("lr")] = 1e9
    device.call("optimizer_step_", *arguments)
    found = copied(arguments[1], torch.float64)
    torch.testing.assert_close(found, expected[1], rtol=1e-5, atol=1e-6)
    assert all(count.item() == 4 for count in arguments[5])


def test_lamb_moves_by_its_learning_rate_times_its_norm():
    device, case = OnHost(), BY_NAME["lamb"]
    arguments = step_of(case, [20_000, 3], device=device)
    before = copied(arguments[1])
    device.call("optimizer_step_", *arguments)
    for old, new in zip(before, arguments[1], strict=True):
        moved = ((new - old).norm() / old.norm()).item()
        assert moved == pytest.approx(case.hyperparameters.lr, rel=1e-4)


@KERNELS
@EACH_CASE
def test_weights_and_gradients_in_different_layouts(way, case):
    arguments = step_of(case, [300, 7, 12])
    for column in (arguments[1], arguments[2], arguments[3]):
        for place in range(0, len(column), 3):
            image, weight = column[place].view(4, 3, 5, 5), column[place + 2].view(6, 2, 1, 1)
            if column is not arguments[2]:
                image = image.to(memory_format=torch.channels_last)
            column[place], column[place + 2] = image, weight
    arguments[2][2] = arguments[2][2].to(memory_format=torch.channels_last)
    ours, theirs = copied(arguments), copied(arguments)
    way().call("optimizer_step_", *ours)
    torch.ops.gallery.optimizer_step_(*theirs)
    torch.testing.assert_close(ours[1:6], theirs[1:6], rtol=1e-5, atol=1e-6)


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
        options = common | {"alpha": h.beta2, "eps": h.eps, "momentum": h.momentum}
        return torch.optim.RMSprop(parameters, **options, centered=case.present[2])
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
    steps = [torch.zeros(()) for _ in ours] if case.rule in COUNTS_STEPS else []
    optimizer = torch_optimizer(case, theirs)
    for _ in range(12):
        gradients = [torch.randn_like(w) for w in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer_step(case.rule, ours, gradients, states, case.hyperparameters, steps=steps)
        torch.testing.assert_close(ours, [t.detach() for t in theirs], rtol=1e-11, atol=1e-12)


def test_versions_of_what_is_changed_are_counted():
    weight, gradient = torch.ones(3), torch.ones(3)
    optimizer_step("sgd", [weight], [gradient], [None], Hyperparameters(lr=0.1))
    assert weight._version > 0
    assert torch.equal(weight, torch.full((3,), 0.9))
