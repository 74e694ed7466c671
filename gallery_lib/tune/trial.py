"""One candidate, set up on a copy of the model: forward and backward on the real inputs, timed, with their gradients.

The copy has no dropout, so that all candidates compute the same. What the model returns is multiplied with fixed
random numbers to have something to differentiate: the user's loss is not known here, and costs little beside a model.
The optimizer is not part of it.
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
"""A parameter's gradient counts as zero when its root mean square is below this part of the whole model's."""


def _laid_out(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    return tensor.contiguous(memory_format=memory_format) if tensor.dim() == 4 else tensor


class Trial:
    """A copy of `model` run as `candidate` says. Raises whatever the candidate raises."""

    def __init__(
        self,
        model: nn.Module,
        candidate: Candidate,
        options: Compiler,
        inputs: Inputs,
        device: torch.device,
    ) -> None:
        self.candidate, self.device = candidate, device
        self.model = copy.deepcopy(model)
        without_dropout(self.model)
        candidate.apply(self.model, options, device)
        args, kwargs = inputs
        self.args = map_tensors(lambda t: _laid_out(t, candidate.memory_format), args)
        self.kwargs = map_tensors(lambda t: _laid_out(t, candidate.memory_format), dict(kwargs))

    def step(self) -> float:
        """Seconds of one forward and backward pass; the gradients stay in the copy."""
        self.model.zero_grad(set_to_none=True)
        self._synchronize()
        began = time.perf_counter()
        outputs = [t for t in tensors_in(self.model(*self.args, **self.kwargs)) if t.requires_grad]
        generator = torch.Generator().manual_seed(0)
        directions = [
            torch.randn(t.shape, generator=generator).to(t) if t.dim() else torch.ones_like(t)
            for t in outputs
        ]
        torch.autograd.backward(outputs, directions)
        self._synchronize()
        return time.perf_counter() - began

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gradient_norms(self) -> dict[str, float]:
        """The L2 norm of each parameter's gradient after a step."""
        return {
            name: float(p.grad.detach().double().norm())
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }


def worst_deviation(
    baseline: Mapping[str, float], candidate: Mapping[str, float], sizes: Mapping[str, int]
) -> tuple[float, str]:
    """How far the norm of a parameter's gradient is from the baseline's, relatively, at worst, and for which parameter.

    Parameters whose gradient is zero but for rounding do not count. `sizes` has each parameter's number of elements.
    """
    mean_squares = {name: norm**2 / sizes[name] for name, norm in baseline.items()}
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    worst, where = 0.0, "no parameter"
    for name, square in mean_squares.items():
        if square <= _NEGLIGIBLE**2 * overall:
            continue
        deviation = abs(candidate.get(name, math.nan) / baseline[name] - 1.0)
        if not deviation <= worst:  # also when it is not a number
            worst, where = (deviation if deviation == deviation else math.inf), name
    return worst, where
