"""An optimizer's step, drawn: its tensors as the kernels get them, and in float64."""

from __future__ import annotations

import dataclasses

import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from kernels.optimizer_cases import Case

from gallery_lib.kernels.optimizer_launch import launches
from gallery_lib.kernels.optimizer_reference import COUNTS_STEPS, Step, reference_step


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
