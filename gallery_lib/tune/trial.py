"""Trial of one candidate on a copy of the model: timed forward and backward passes with gradients.

The passes run on the real inputs. The copy has no dropout, so that all candidates compute the same.
The model's outputs are multiplied with fixed random numbers to have something to differentiate. The
user's loss is not known here, and costs little beside a model. The optimizer is not part of the
trial.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import Compiler
from gallery_lib.data.loading.nesting import map_tensors, tensors_in
from gallery_lib.models.dropout import without_dropout
from gallery_lib.tune.candidates import Candidate

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
_NEGLIGIBLE = 1e-5
"""A gradient counts as zero below this fraction of the whole model's root mean square."""


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    return tensor.contiguous(memory_format=memory_format) if tensor.dim() == 4 else tensor


class Trial:
    """A copy of `model` that runs as `candidate` says. Raises whatever the candidate raises."""

    def __init__(
        self,
        model: nn.Module,
        candidate: Candidate,
        options: Compiler,
        inputs: Inputs,
        device: torch.device,
    ) -> None:
        self.candidate, self.device = candidate, device
        self._directions: list[Tensor] = []
        self.model = copy.deepcopy(model)
        without_dropout(self.model)
        candidate.apply(self.model, options, device)
        args, kwargs = inputs
        self.args = map_tensors(lambda t: _laid_out(t, candidate.memory_format), args)
        self.kwargs = map_tensors(lambda t: _laid_out(t, candidate.memory_format), dict(kwargs))

    def step(self) -> float:
        """Run a forward and a backward pass and return the seconds; gradients stay in the copy."""
        self.model.zero_grad(set_to_none=True)
        self._synchronize()
        began = time.perf_counter()
        outputs = [t for t in tensors_in(self.model(*self.args, **self.kwargs)) if t.requires_grad]
        torch.autograd.backward(outputs, self._directions_of(outputs))
        self._synchronize()
        return time.perf_counter() - began

    def _directions_of(self, outputs: list[Tensor]) -> list[Tensor]:
        """Return what the outputs are multiplied with.

        It is drawn at the first step, which no turn counts.
        """
        if [t.shape for t in self._directions] != [t.shape for t in outputs]:
            generator = torch.Generator().manual_seed(0)
            self._directions = [
                torch.randn(t.shape, generator=generator).to(t) if t.dim() else torch.ones_like(t)
                for t in outputs
            ]
        return self._directions

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gradient_norms(self) -> dict[str, float]:
        """Return the L2 norm of each parameter's gradient after a step, by parameter name."""
        return {
            name: float(p.grad.detach().double().norm())
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }


def worst_deviation(
    baseline: Mapping[str, float], candidate: Mapping[str, float], sizes: Mapping[str, int]
) -> tuple[float, str]:
    """Return the largest relative deviation of a gradient norm from the baseline, and where it is.

    Parameters whose gradient is zero except for rounding do not count.

    Args:
        baseline: gradient norms of the baseline, by parameter name.
        candidate: gradient norms of the candidate.
        sizes: number of elements of each parameter.
    """
    mean_squares = {name: norm**2 / sizes[name] for name, norm in baseline.items()}
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    worst, where = 0.0, "no parameter"
    for name, square in mean_squares.items():
        if square <= _NEGLIGIBLE**2 * overall:
            continue
        deviation = abs(candidate.get(name, math.nan) / baseline[name] - 1.0)
        if not deviation <= worst:  # also true for NaN
            worst, where = (deviation if deviation == deviation else math.inf), name
    return worst, where
