"""`gallery::optimizer_step_`, each way: against float64, torch's and timm's steps, and refusals."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.optimizer_cases import BY_NAME, CASES, Case, arguments_of, bounds
from kernels.ways import KERNELS, OnHost

from gallery_lib.kernels.optimizer_step import (
    COUNTS_STEPS,
    NUMBERS,
    SWITCHES,
    Hyperparameters,
    optimizer_step,
)
from gallery_lib.kernels.runtime.launch import ELEMENTS

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
SCALARS = ("gradient_scale", "found_inf", "learning_rate")


class Problem:
    """Weights, gradients and states of a case in a way's memory, and a step's other inputs."""

    def __init__(
        self, case: Case, sizes, dtype=torch.float32, offsets=(None, None), seed=0, exponent=0.0,
        step=3, device=None, **scalars,
    ):  # fmt: skip
        def drawn(first, exponent=exponent, dtype=torch.float32):
            seeds = itertools.count(seed + first)
            return [draw.values(size, dtype, next(seeds), exponent) for size in sizes]

        self.case, self.dtype, self.device = case, dtype, device or OnHost()
        take, weights = self.device.take, drawn(0, 0.0, dtype)
        self.weights = [take(w, offsets[0]) for w in weights]
        self.gradients = [take(g, offsets[1]) for g in drawn(50, dtype=dtype)]
        first, second = drawn(100), drawn(150)
        squares = [s.square() for s in second]
        if case.rule == "rmsprop":  # centered: no negative variance
            squares = [2 * f.square() + s for f, s in zip(first, squares, strict=True)]
        columns = {"sgd": [first], "rmsprop": [squares, second, first]}
        columns = columns.get(case.rule, [first, squares])
        self.states = [
            [take(t, offsets[i % 2]) if present else None for t in column]
            for i, (column, present) in enumerate(zip(columns, case.present, strict=True))
        ]
        self.steps = [
            take(torch.tensor([float(step)])) if case.rule in COUNTS_STEPS else None for _ in sizes
        ]
        self.scalars = {
            name: None if value is None else take(torch.tensor([value]))
            for name, value in scalars.items()
        }

    def run(self, call=None) -> None:
        """Take the step, in the way of the device unless another call is given."""
        h = self.case.hyperparameters
        present = [k for k, there in enumerate(self.case.present) if there]
        (call or self.device.call)(
            "optimizer_step_",
            self.case.rule,
            self.weights,
            self.gradients,
            [tensor for k in present for tensor in self.states[k]],
            present,
            [step for step in self.steps if step is not None],
            *(self.scalars.get(name) for name in SCALARS),
            [float(getattr(h, name)) for name in NUMBERS],
            [getattr(h, name) for name in SWITCHES],
        )

    def tensors(self):
        columns = [self.weights, self.gradients, *self.states, self.steps]
        return [tensor for column in columns for tensor in column if tensor is not None]

    def exact(self):
        """Return a copy in float64 after the step, and the gradients after scaling."""
        wide = lambda column: [None if t is None else t.double() for t in column]  # noqa: E731
        other = copy.copy(self)
        other.weights, other.gradients = wide(self.weights), wide(self.gradients)
        other.states = [wide(column) for column in self.states]
        other.steps = [None if s is None else s.clone() for s in self.steps]
        other.scalars = dict(zip(self.scalars, wide(self.scalars.values()), strict=True))
        other.run(lambda name, *rest: getattr(torch.ops.gallery, name)(*rest))
        given = {name: v.item() for name, v in self.scalars.items() if v is not None}
        return other, [g.double() / given.get("gradient_scale", 1.0) for g in self.gradients]


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
    scalars = {"gradient_scale": gradient_scale, "found_inf": 0.0}
    drawn = (sizes, dtype, offsets, seed, exponent, step, way(schedule, offsets[0]))
    problem = Problem(case, *drawn, **scalars)
    exact, scaled = problem.exact()
    copies = [
        [None if t is None else t.clone() for t in column]
        for column in (problem.weights, problem.gradients, *problem.states)
    ]
    before, gradients, *states = copies
    problem.run()
    u, smallest = draw.UNIT_ROUNDOFF[dtype], draw.SMALLEST[dtype]
    for i in range(len(sizes)):
        old = [None if column[i] is None else column[i].double() for column in states]
        new, weight = [column[i] for column in exact.states], exact.weights[i]
        of_weight, of_states = bounds(
            case, before[i].double(), scaled[i], old, weight, new, step + 1
        )
        if dtype is not torch.float32:
            of_weight = of_weight + u * (weight.abs() + of_weight) + smallest
        assert ((problem.weights[i].double() - weight).abs() <= of_weight).all()
        for column, state, bound in zip(problem.states, new, of_states, strict=True):
            assert state is None or ((column[i].double() - state).abs() <= bound).all()
        assert torch.equal(problem.gradients[i], gradients[i])
        assert problem.steps[i] is None or problem.steps[i].item() == step + 1


@KERNELS
@EACH_CASE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_changes_no_bit(way, case, dtype):
    problem = Problem(case, [5, 0, 8195], dtype, device=way(), found_inf=1.0)
    problem.gradients[0][2] = math.inf
    before = [tensor.clone() for tensor in problem.tensors()]
    problem.run()
    for old, now in zip(before, problem.tensors(), strict=True):
        assert torch.equal(now.view(torch.uint8), old.view(torch.uint8))


@EACH_CASE
def test_more_tensors_than_fit_one_launch_and_a_learning_rate_on_the_device(case):
    def with_rate(lr):
        changed = dataclasses.replace(case.hyperparameters, lr=lr)
        return dataclasses.replace(case, hyperparameters=changed)

    problem = Problem(with_rate(0.03), [1 + i % 5 for i in range(100)])
    expected = problem.exact()[0].weights
    problem.scalars["learning_rate"] = problem.device.take(torch.tensor([0.03]))
    problem.case = with_rate(1e9)
    problem.run()
    torch.testing.assert_close(
        [w.double() for w in problem.weights], expected, rtol=1e-5, atol=1e-6
    )
    assert all(step is None or step.item() == 4 for step in problem.steps)


def test_lamb_moves_by_its_learning_rate_times_its_norm():
    problem = Problem(BY_NAME["lamb"], [20_000, 3])
    before = [w.clone() for w in problem.weights]
    problem.run()
    for old, new in zip(before, problem.weights, strict=True):
        assert ((new - old).norm() / old.norm()).item() == pytest.approx(
            BY_NAME["lamb"].hyperparameters.lr, rel=1e-4
        )


@KERNELS
@EACH_CASE
def test_weights_and_gradients_in_different_layouts(way, case):
    torch.manual_seed(0)
    weights = [torch.randn(4, 3, 5, 5), torch.randn(7), torch.randn(6, 2, 1, 1)]
    weights[0] = weights[0].to(memory_format=torch.channels_last)
    gradients = [torch.randn(w.shape) for w in weights]
    gradients[2] = gradients[2].to(memory_format=torch.channels_last)
    outcomes = []
    for call in (way().call, lambda name, *rest: getattr(torch.ops.gallery, name)(*rest)):
        torch.manual_seed(1)
        rule, _, _, states, present, *rest = arguments_of(case, weights)
        columns = [[t.clone() for t in column] for column in (weights, gradients, states)]
        call("optimizer_step_", rule, *columns, present, *rest)
        outcomes.append(columns)
    torch.testing.assert_close(*outcomes, rtol=1e-5, atol=1e-6)


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
