"""`gallery::optimizer_step_`: kernels against float64, the reference against torch and timm.

The float64 results are computed on the CPU.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.optimizer_cases import CASES, bounds
from kernels.optimizer_problem import Problem

from gallery_lib.kernels.optimizer_step import optimizer_step
from gallery_lib.kernels.runtime.launch import ELEMENTS

BY_NAME = {case.name: case for case in CASES}
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


@EACH_CASE
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(draw.SIZES, min_size=1, max_size=3),
    dtype=st.sampled_from(list(ELEMENTS)),
    master=st.booleans(),
    offsets=st.tuples(draw.OFFSETS, draw.OFFSETS),
    seed=st.integers(0, 2**16),
    exponent=st.sampled_from([-140.0, -70.0, -12.0, 0.0, 6.0]),
    step=st.sampled_from([0, 1, 4, 5, 6, 100, 10_000]),
    gradient_scale=st.sampled_from([None, 1.0, 4.0, 3.0]),
    clip_factor=st.sampled_from([None, 0.37]),
    zero=st.booleans(),
    schedule=draw.SCHEDULES,
)
def test_every_element_is_within_the_bound_of_float64(
    case,
    sizes,
    dtype,
    master,
    offsets,
    seed,
    exponent,
    step,
    gradient_scale,
    clip_factor,
    zero,
    schedule,
):
    master = master and dtype is not torch.float32
    problem = Problem(
        case,
        sizes,
        dtype,
        master,
        offsets,
        seed,
        exponent,
        step,
        gradient_scale=gradient_scale,
        clip_factor=clip_factor,
        found_inf=0.0,
    )
    sources, before, weights, states, scaled = problem.exact()
    gradients = [g.clone() for g in problem.gradients]
    problem.run_on_host(schedule, zero_gradients=zero)
    u, smallest = draw.UNIT_ROUNDOFF[dtype], draw.SMALLEST[dtype]
    for i in range(len(sizes)):
        old, new = [column[i] for column in before], [column[i] for column in states]
        of_weight, of_states = bounds(case, sources[i], scaled[i], old, weights[i], new, step + 1)
        rounded = of_weight + (
            0 if dtype is torch.float32 else u * (weights[i].abs() + of_weight) + smallest
        )
        assert ((problem.weights[i].double() - weights[i]).abs() <= rounded).all()
        if master:
            assert ((problem.masters[i].double() - weights[i]).abs() <= of_weight).all()
            assert torch.equal(problem.weights[i], problem.masters[i].to(dtype))
        for column, exact, bound in zip(problem.states, new, of_states, strict=True):
            assert exact is None or ((column[i].double() - exact).abs() <= bound).all()
        assert torch.equal(
            problem.gradients[i], torch.zeros_like(gradients[i]) if zero else gradients[i]
        )
        assert problem.steps[i] is None or problem.steps[i].item() == step + 1
    assert problem.skipped.item() == 7


@EACH_CASE
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_changes_no_bit_but_of_the_skip_count_and_of_zeroed_gradients(
    case, zero, dtype
):
    problem = Problem(case, [5, 0, 8195], dtype, dtype is torch.bfloat16, found_inf=1.0)
    problem.gradients[0][2] = math.inf
    before = [tensor.clone() for tensor in problem.tensors()]
    problem.run_on_host(zero_gradients=zero)
    gradients = {gradient.data_ptr() for gradient in problem.gradients}
    for old, now in zip(before, problem.tensors(), strict=True):
        expected = torch.zeros_like(old) if zero and now.data_ptr() in gradients else old
        assert torch.equal(now.view(torch.uint8), expected.view(torch.uint8))
    assert problem.skipped.item() == 8


@EACH_CASE
def test_more_tensors_than_fit_one_launch_and_a_learning_rate_on_the_device(case):
    case = dataclasses.replace(
        case, hyperparameters=dataclasses.replace(case.hyperparameters, lr=0.03)
    )
    problem = Problem(case, [1 + i % 5 for i in range(100)])
    expected = [w.clone() for w in problem.exact()[2]]
    problem.scalars["learning_rate"] = problem.place(torch.tensor([0.03]))
    problem.case = dataclasses.replace(
        case, hyperparameters=dataclasses.replace(case.hyperparameters, lr=1e9)
    )
    problem.run_on_host()
    torch.testing.assert_close(
        [w.double() for w in problem.weights], expected, rtol=1e-5, atol=1e-6
    )
    assert problem.skipped.item() == 7
    assert all(step is None or step.item() == 4 for step in problem.steps)


def test_skips_are_counted_once_however_many_launches_it_takes():
    problem = Problem(BY_NAME["sgd"], [1] * 100, found_inf=1.0)
    problem.run_on_host()
    assert problem.skipped.item() == 8


@EACH_CASE
def test_a_nan_without_found_inf_stays_with_its_element(case):
    if case.rule == "lamb":
        return  # there every element depends on the tensor's norm
    problem, clean = Problem(case, [300]), Problem(case, [300])
    problem.gradients[0][17] = math.nan
    problem.run_on_host()
    clean.run_on_host()
    others = torch.arange(300) != 17
    assert problem.weights[0][17].isnan()
    assert torch.equal(problem.weights[0][others], clean.weights[0][others])


def test_lamb_moves_by_its_learning_rate_times_its_norm():
    problem = Problem(BY_NAME["lamb"], [20_000, 3])
    before = [w.clone() for w in problem.weights]
    problem.run_on_host()
    for old, new in zip(before, problem.weights, strict=True):
        assert ((new - old).norm() / old.norm()).item() == pytest.approx(
            BY_NAME["lamb"].hyperparameters.lr, rel=1e-4
        )


@pytest.mark.gpu
@EACH_CASE
@pytest.mark.parametrize("dtype", list(ELEMENTS))
def test_the_kernel_on_the_device(case, dtype, cuda_kernels):
    sizes = [1, 4, 8193, 100_001]
    problem = Problem(
        case, sizes, dtype, dtype is not torch.float32, gradient_scale=4.0, found_inf=0.0
    )
    sources, before, weights, states, scaled = problem.exact()
    to = lambda column: [t.to(cuda_kernels) for t in column]  # noqa: E731
    moved = [to(column) if column[0] is not None else None for column in problem.states]
    ours, masters = (
        to(problem.weights),
        to(problem.masters) if problem.masters[0] is not None else [],
    )
    steps = [s.reshape(()) for s in to(problem.steps)] if problem.steps[0] is not None else []
    scalars = {name: value.to(cuda_kernels) for name, value in problem.scalars.items()}
    optimizer_step(
        case.rule,
        ours,
        to(problem.gradients),
        moved,
        case.hyperparameters,
        masters=masters,
        steps=steps,
        **scalars,
    )
    u, smallest = draw.UNIT_ROUNDOFF[dtype], draw.SMALLEST[dtype]
    for i in range(len(sizes)):
        old, new = [column[i] for column in before], [column[i] for column in states]
        of_weight, _ = bounds(case, sources[i], scaled[i], old, weights[i], new, 4)
        rounded = of_weight + (
            0 if dtype is torch.float32 else u * (weights[i].abs() + of_weight) + smallest
        )
        assert ((ours[i].cpu().double() - weights[i]).abs() <= rounded).all()
    optimizer_step(
        case.rule, ours, to(problem.gradients), moved, case.hyperparameters,
        masters=masters, steps=steps, found_inf=torch.ones((), device=cuda_kernels),
        skipped=(skipped := torch.zeros((), dtype=torch.int64, device=cuda_kernels)),
    )  # fmt: skip
    assert skipped.item() == 1
    assert all(step.item() == 4 for step in steps)
