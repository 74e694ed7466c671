"""`gallery::optimizer_step_`: kernels against float64, the reference against torch and timm.

The float64 results are computed on the CPU.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.optimizer_cases import CASES, Case, bounds

from gallery_lib.errors import InputError
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.optimizer_reference import (
    COUNTS_STEPS,
    Hyperparameters,
    Step,
    reference_step,
)
from gallery_lib.kernels.optimizer_step import launches, optimizer_step

BY_NAME = {case.name: case for case in CASES}
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))


class Problem:
    """Weights, gradients and states of a case between guard pages, and a step's other inputs."""

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
        **scalars,
    ):
        self.case, self.dtype = case, dtype
        self.guarded: list[Guarded] = []
        weights = [draw.values(size, dtype, seed + i, 0.0) for i, size in enumerate(sizes)]
        self.weights = [self.place(w, offsets[0]) for w in weights]
        self.gradients = [
            self.place(draw.values(size, dtype, seed + 50 + i, exponent), offsets[1])
            for i, size in enumerate(sizes)
        ]
        first = [
            draw.values(size, torch.float32, seed + 100 + i, exponent)
            for i, size in enumerate(sizes)
        ]
        second = [
            draw.values(size, torch.float32, seed + 150 + i, exponent)
            for i, size in enumerate(sizes)
        ]
        columns = {
            "sgd": [first],
            "rmsprop": [
                [2 * f.square() + s.square() for f, s in zip(first, second, strict=True)],
                second,
                first,
            ],
        }.get(case.rule, [first, [s.square() for s in second]])
        self.states = [
            [self.place(t, offsets[i % 2]) if present else None for t in column]
            for i, (column, present) in enumerate(zip(columns, case.present, strict=True))
        ]
        self.masters = [
            self.place(w.float() * (1 + 2.0**-12), offsets[0]) if master else None for w in weights
        ]
        self.steps = [
            self.place(torch.tensor([float(step)])) if case.rule in COUNTS_STEPS else None
            for _ in sizes
        ]
        self.skipped = self.place(torch.tensor([7]))
        self.scalars = {
            name: None if value is None else self.place(torch.tensor([value]))
            for name, value in scalars.items()
        }

    def place(self, tensor: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        self.guarded.append(Guarded(tensor, offset))
        return self.guarded[-1].tensor

    def step(self) -> Step:
        columns = (self.weights, self.gradients, self.states, self.masters, self.steps)
        return Step(self.case.rule, *columns, skipped=self.skipped, **self.scalars)

    def run_on_host(self, schedule: int = 0, **changed: bool) -> None:
        def new(elements, dtype):
            self.guarded.append(poisoned((elements,), dtype))
            return self.guarded[-1].tensor

        h = dataclasses.replace(self.case.hyperparameters, **changed)
        plan, _ = launches(self.step(), h, new)
        for launch in plan:
            host.run(launch, schedule)
        for guarded in self.guarded:
            guarded.check()

    def tensors(self):
        columns = [self.weights, self.gradients, *self.states, self.masters, self.steps]
        return [tensor for column in columns for tensor in column if tensor is not None]

    def exact(self):
        """Return (weights, states, gradients after scaling) after the step, in float64."""
        wide = lambda column: [None if t is None else t.double() for t in column]  # noqa: E731
        sources = wide(
            [w if m is None else m for w, m in zip(self.weights, self.masters, strict=True)]
        )
        weights, states, gradients = (
            [w.clone() for w in sources],
            [wide(column) for column in self.states],
            wide(self.gradients),
        )
        steps = [None if s is None else s.clone().reshape(()) for s in self.steps]
        before = [[None if t is None else t.clone() for t in column] for column in states]
        scalars = dict(zip(self.scalars, wide(self.scalars.values()), strict=True))
        absent = [None] * len(weights)
        reference_step(
            Step(self.case.rule, weights, gradients, states, absent, steps, **scalars),
            self.case.hyperparameters,
        )
        factor = (
            1.0 if self.scalars.get("clip_factor") is None else self.scalars["clip_factor"].item()
        )
        factor /= (
            1.0
            if self.scalars.get("gradient_scale") is None
            else self.scalars["gradient_scale"].item()
        )
        return sources, before, weights, states, [g * factor for g in gradients]


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
    ("changed", "message"),
    [
        ({"rule": "lam"}, "Did you mean `lamb`"),
        ({"states": [None]}, "takes 2 columns of states"),
        ({"gradients": []}, "1 weights and 0 gradients"),
        ({"gradients": [torch.ones(3).double()]}, "gradients must be torch.float32"),
        ({"gradients": [torch.ones(2)]}, "gradients must have the shape"),
        ({"states": [[torch.ones(3)], [torch.ones(3).half()]]}, "must be torch.float32"),
        ({"steps": []}, "0 steps"),
        ({"steps": [torch.ones(2)]}, "must be scalars"),
        ({"found_inf": torch.tensor(0)}, "found_inf must be float32"),
        ({"skipped": torch.tensor(0.0)}, "skipped must be int64"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, message):
    good = {
        "rule": "adamw",
        "weights": [torch.ones(3)],
        "gradients": [torch.ones(3)],
        "states": [[torch.ones(3)], [torch.ones(3)]],
        "hyperparameters": Hyperparameters(lr=0.1),
        "steps": [torch.ones(())],
    }
    optimizer_step(**good)
    with pytest.raises(InputError, match=message):
        optimizer_step(**good | changed)


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
