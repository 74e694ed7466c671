"""`gallery::optimizer_step_`, each way: against float64, torch's and timm's steps, and refusals."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.optimizer_cases import CASES, Case, bounds
from kernels.ways import KERNELS, OnHost
from refusal import refused

from gallery_lib.kernels.optimizer_reference import (
    COUNTS_STEPS,
    Hyperparameters,
    Step,
    reference_step,
)
from gallery_lib.kernels.optimizer_step import NUMBERS, SWITCHES, optimizer_step
from gallery_lib.kernels.runtime.launch import ELEMENTS

BY_NAME = {case.name: case for case in CASES}
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
SCALARS = ("skipped", "gradient_scale", "found_inf", "clip_factor", "learning_rate")


class Problem:
    """Weights, gradients and states of a case in a way's memory, and a step's other inputs."""

    def __init__(
        self,
        case: Case,
        sizes,
        dtype=torch.float32,
        master=False,
        offsets=(None, None),
        seed=0,
        exponent=0.0,
        step=3,
        device=None,
        **scalars,
    ):
        def drawn(first, exponent=exponent, dtype=torch.float32):
            return [
                draw.values(size, dtype, seed + first + i, exponent) for i, size in enumerate(sizes)
            ]

        self.case, self.dtype, self.device = case, dtype, device or OnHost()
        take, weights = self.device.take, drawn(0, 0.0, dtype)
        self.weights = [take(w, offsets[0]) for w in weights]
        self.gradients = [take(g, offsets[1]) for g in drawn(50, dtype=dtype)]
        first, second = drawn(100), drawn(150)
        columns = {
            "sgd": [first],
            "rmsprop": [
                [2 * f.square() + s.square() for f, s in zip(first, second, strict=True)],
                second,
                first,
            ],
        }.get(case.rule, [first, [s.square() for s in second]])
        self.states = [
            [take(t, offsets[i % 2]) if present else None for t in column]
            for i, (column, present) in enumerate(zip(columns, case.present, strict=True))
        ]
        self.masters = [
            take(w.float() * (1 + 2.0**-12), offsets[0]) if master else None for w in weights
        ]
        self.steps = [
            take(torch.tensor([float(step)])) if case.rule in COUNTS_STEPS else None for _ in sizes
        ]
        self.scalars = {"skipped": take(torch.tensor([7]))} | {
            name: None if value is None else take(torch.tensor([value]))
            for name, value in scalars.items()
        }

    def run(self, **changed: bool) -> None:
        """Take the step, in the way of the device."""
        h = dataclasses.replace(self.case.hyperparameters, **changed)
        present = [k for k, there in enumerate(self.case.present) if there]
        there = lambda column: [t for t in column if t is not None]  # noqa: E731
        self.device.call(
            "optimizer_step_",
            self.case.rule,
            self.weights,
            self.gradients,
            [tensor for column in self.states for tensor in there(column)],
            present,
            there(self.masters),
            there(self.steps),
            *(self.scalars.get(name) for name in SCALARS),
            [float(getattr(h, name)) for name in NUMBERS],
            [getattr(h, name) for name in SWITCHES],
        )

    def tensors(self):
        columns = [self.weights, self.gradients, *self.states, self.masters, self.steps]
        return [tensor for column in columns for tensor in column if tensor is not None]

    def exact(self):
        """Return (weights, states, gradients after scaling) after the step, in float64."""
        wide = lambda column: [None if t is None else t.double() for t in column]  # noqa: E731
        sources = wide(
            [w if m is None else m for w, m in zip(self.weights, self.masters, strict=True)]
        )
        weights, states = [w.clone() for w in sources], [wide(column) for column in self.states]
        gradients, absent = wide(self.gradients), [None] * len(sources)
        steps = [None if s is None else s.clone().reshape(()) for s in self.steps]
        before = [[None if t is None else t.clone() for t in column] for column in states]
        scalars = {name: value for name, value in self.scalars.items() if name != "skipped"}
        scalars = dict(zip(scalars, wide(scalars.values()), strict=True))
        reference_step(
            Step(self.case.rule, weights, gradients, states, absent, steps, **scalars),
            self.case.hyperparameters,
        )
        given = {name: value.item() for name, value in scalars.items() if value is not None}
        factor = given.get("clip_factor", 1.0) / given.get("gradient_scale", 1.0)
        return sources, before, weights, states, [g * factor for g in gradients]


@KERNELS
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
    way,
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
    scalars = {"gradient_scale": gradient_scale, "clip_factor": clip_factor, "found_inf": 0.0}
    drawn = (sizes, dtype, master, offsets, seed, exponent, step, way(schedule, offsets[0]))
    problem = Problem(case, *drawn, **scalars)
    sources, before, weights, states, scaled = problem.exact()
    gradients = [g.clone() for g in problem.gradients]
    problem.run(zero_gradients=zero)
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
    assert problem.scalars["skipped"].item() == 7


@KERNELS
@EACH_CASE
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_skipped_step_changes_no_bit_but_of_the_skip_count_and_of_zeroed_gradients(
    way, case, zero, dtype
):
    master = dtype is torch.bfloat16
    problem = Problem(case, [5, 0, 8195], dtype, master, device=way(), found_inf=1.0)
    problem.gradients[0][2] = math.inf
    before = [tensor.clone() for tensor in problem.tensors()]
    problem.run(zero_gradients=zero)
    gradients = {gradient.data_ptr() for gradient in problem.gradients}
    for old, now in zip(before, problem.tensors(), strict=True):
        expected = torch.zeros_like(old) if zero and now.data_ptr() in gradients else old
        assert torch.equal(now.view(torch.uint8), expected.view(torch.uint8))
    assert problem.scalars["skipped"].item() == 8


@EACH_CASE
def test_more_tensors_than_fit_one_launch_and_a_learning_rate_on_the_device(case):
    def with_rate(lr):
        return dataclasses.replace(
            case, hyperparameters=dataclasses.replace(case.hyperparameters, lr=lr)
        )

    problem = Problem(with_rate(0.03), [1 + i % 5 for i in range(100)])
    expected = [w.clone() for w in problem.exact()[2]]
    problem.scalars["learning_rate"] = problem.device.take(torch.tensor([0.03]))
    problem.case = with_rate(1e9)
    problem.run()
    torch.testing.assert_close(
        [w.double() for w in problem.weights], expected, rtol=1e-5, atol=1e-6
    )
    assert problem.scalars["skipped"].item() == 7
    assert all(step is None or step.item() == 4 for step in problem.steps)


def test_skips_are_counted_once_however_many_launches_it_takes():
    problem = Problem(BY_NAME["sgd"], [1] * 100, found_inf=1.0)
    problem.run()
    assert problem.scalars["skipped"].item() == 8


@EACH_CASE
def test_a_nan_without_found_inf_stays_with_its_element(case):
    if case.rule == "lamb":
        return  # there every element depends on the tensor's norm
    problem, clean = Problem(case, [300]), Problem(case, [300])
    problem.gradients[0][17] = math.nan
    problem.run()
    clean.run()
    others = torch.arange(300) != 17
    assert problem.weights[0][17].isnan()
    assert torch.equal(problem.weights[0][others], clean.weights[0][others])


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
        rule, _, _, states, present, *rest = arguments_of_the_operator(case, weights)
        columns = [[t.clone() for t in column] for column in (weights, gradients, states)]
        call("optimizer_step_", rule, *columns, present, *rest)
        outcomes.append(columns)
        assert not any(gradient.any() for gradient in columns[1])
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
    steps = [torch.zeros(()) for _ in ours]
    optimizer = torch_optimizer(case, theirs)
    for _ in range(12):
        gradients = [torch.randn_like(w) for w in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        optimizer_step(case.rule, ours, gradients, states, case.hyperparameters, steps=steps)
        torch.testing.assert_close(ours, [t.detach() for t in theirs], rtol=1e-11, atol=1e-12)


def arguments_of_the_operator(case: Case, weights=None):
    weights = weights or [torch.randn(5), torch.randn(3, 2)]
    present = [k for k, there in enumerate(case.present) if there]
    # No negative variance in centered RMSprop.
    states = [torch.rand_like(w) + (1 if k else 9) for k in present for w in weights]
    steps = [torch.ones(()) for _ in weights] if case.rule in COUNTS_STEPS else []
    numbers, switches = [1e-2, 1e-2, 0.9, 0.99, 1e-8, 0.9], [False, False, False, True]
    scalars = (torch.zeros((), dtype=torch.int64), torch.tensor(2.0), torch.tensor(0.0), None, None)
    gradients = [torch.randn_like(w) for w in weights]
    lists = (weights, gradients, states, present, [], steps)
    return (case.rule, *lists, *scalars, numbers, switches)


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
