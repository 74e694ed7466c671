"""Candidates of the tuner, a memory layout with a compiler or without one, and a trial of each."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler, Config
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.memory import convert_images, memory_format
from gallery_lib.models.dropout import without_dropout

_WITHOUT_END = 1e9
"""Deviation of a gradient that is no finite number, in a file that holds finite ones."""


@dataclass(frozen=True)
class Candidate:
    """A memory layout and a compiler backend for a model; the defaults are the baseline."""

    layout: str = "contiguous"
    backend: str | None = None

    @property
    def name(self) -> str:
        """Return the display name, such as `eager` or `inductor, channels_last`."""
        layout = f", {self.layout}" if self.layout != "contiguous" else ""
        return f"{self.backend or 'eager'}{layout}"

    def apply(self, model: nn.Module, options: Compiler, device: torch.device) -> None:
        """Lay out and compile `model` in place; compilation itself runs at its next call."""
        channels_last = self.layout == "channels_last"
        if self.backend:
            options = dataclasses.replace(options, backend=self.backend)
            compile_model(model, options, device, channels_last=channels_last)
        elif channels_last:
            convert_images(model)


BASELINE = Candidate()


def candidates(model: nn.Module, config: Config, device: torch.device) -> list[Candidate]:
    """Return the baseline, then what `config` allows: its layout alone, and with its compiler.

    A layout is a candidate of its own where it is asked for by name. Candidates that coincide
    appear once.
    """
    channels_last = memory_format(model, config.memory, device.type) is torch.channels_last
    layout = "channels_last" if channels_last else "contiguous"
    variants = [BASELINE]
    if config.memory.layout != "auto":
        variants.append(Candidate(layout))
    if config.compiler.enabled:
        variants.append(Candidate(layout, config.compiler.backend))
    return list(dict.fromkeys(variants))


Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
_NEGLIGIBLE = 1e-5
"""A gradient counts as zero below this fraction of the whole model's root mean square."""


class Trial:
    """A copy of `model` that runs as a candidate says. Raises whatever the candidate raises.

    Forward and backward passes run on the real inputs. The copy has no dropout, so that all
    candidates compute the same. The model's outputs are multiplied with fixed random numbers to
    have something to differentiate: the user's loss is not known here, and costs little beside a
    model. The optimizer is not part of the trial.
    """

    def __init__(
        self, model: nn.Module, one: Candidate, options: Compiler, inputs: Inputs, device: Any
    ) -> None:
        self.device = device
        self._directions: list[Tensor] = []
        self.model = copy.deepcopy(model)
        without_dropout(self.model)
        one.apply(self.model, options, device)
        args, kwargs = inputs
        self.args, self.kwargs = args, dict(kwargs)

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
        # Drawn at the first step, which no turn counts.
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

    Norms and numbers of elements are by parameter name. Parameters whose gradient is zero except
    for rounding do not count.
    """
    mean_squares = {name: norm**2 / sizes[name] for name, norm in baseline.items()}
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    worst, where = 0.0, "no parameter"
    for name, square in mean_squares.items():
        if square <= _NEGLIGIBLE**2 * overall:
            continue
        deviation = abs(candidate.get(name, math.nan) / baseline[name] - 1.0)
        if not deviation <= worst:  # also true for NaN
            finite = deviation == deviation
            worst, where = (min(deviation, _WITHOUT_END) if finite else _WITHOUT_END), name
    return worst, where
