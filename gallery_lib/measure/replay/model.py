"""Replay model that waits as a timeline says instead of computing; gradients come in its order.

The backward pass is real autograd: a chain of nodes, one per gradient, from the first that is ready
to the last. Each node makes its gradient, waits for its time, and hands it on. So
DistributedDataParallel and its hooks see what they see of a real model. When communication in the
same process is late, later waits are shorter: times count from the beginning of the pass.

Parameters have the recorded shapes and no memory of their own (one value, expanded): nothing ever
reads them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.measure.replay.timeline import Gradient, Timeline

_PATTERN_VALUES = 2**16  # after which a gradient repeats


class _Gate(torch.autograd.Function):
    """Autograd node that passes a token on.

    In the backward pass it calls `pass_through`, whose result is the gradient of `parameter`.
    """

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, parameter: Tensor | None, pass_through: Callable[[], Tensor | None]
    ) -> Tensor:
        ctx.pass_through = pass_through
        return token.view_as(token)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, None]:
        return gradient, ctx.pass_through(), None


class Replay(nn.Module):
    """Module that replays a timeline.

    `model()` is a forward pass. `backward()` of what it returns, and `optimizer_step()`, are the
    rest of a step.

    Args:
        timeline: what is replayed.
        stretch: factor by which every wait is multiplied.
        seed: seed of the gradients' values, which should differ by rank.
        share_gradients: make all gradients in the same memory, one over the other. DDP gets each
            as it is, and copies it into its buckets. The mean is there, and in `.grad` only where
            that is a view of a bucket. Saves nearly half of the memory.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        stretch: float = 1.0,
        seed: int = 0,
        share_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.timeline, self.stretch = timeline, stretch
        self._pattern = torch.randn(_PATTERN_VALUES, generator=torch.Generator().manual_seed(seed))
        self._began = 0.0
        largest = max(gradient.bytes for gradient in timeline.gradients)
        self._memory = torch.empty(largest, dtype=torch.uint8) if share_gradients else None
        self._parameter_of = {
            gradient.place: nn.Parameter(
                torch.zeros((), dtype=getattr(torch, gradient.dtype)).expand(gradient.shape)
            )
            for gradient in sorted(timeline.gradients, key=lambda gradient: gradient.place)
        }
        self.weights = nn.ParameterList(self._parameter_of.values())

    def gradient(self, gradient: Gradient) -> Tensor:
        """Return the gradient that a backward pass gives: random values, the same in every step."""
        if self._memory is None:
            memory = torch.empty(gradient.bytes, dtype=torch.uint8)
        else:
            memory = self._memory[: gradient.bytes]
        flat, size = memory.view(getattr(torch, gradient.dtype)), self._pattern.numel()
        repeated = flat.numel() // size * size
        flat[:repeated].view(-1, size).copy_(self._pattern)
        flat[repeated:].copy_(self._pattern[: flat.numel() - repeated])
        return flat.view(gradient.shape)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _wait_until(self, seconds: float) -> None:
        """Sleep until so many unstretched seconds after `_begin`; return at once if they are over.

        The cores are free meanwhile, as they are beside a GPU that computes.
        """
        while (left := self._began + seconds * self.stretch - time.perf_counter()) > 0:
            time.sleep(left)

    def _give(self, gradient: Gradient) -> Tensor:
        tensor = self.gradient(gradient)  # made within the wait, as far as that is long enough
        self._wait_until(gradient.ready_seconds)
        return tensor

    def forward(self) -> Tensor:
        """Return a scalar, after the wait for the input and for the forward pass."""
        self._begin()
        end = functools.partial(self._wait_until, self.timeline.backward_seconds)
        token = _Gate.apply(torch.zeros((), requires_grad=True), None, end)
        for gradient in reversed(self.timeline.gradients):
            give = functools.partial(self._give, gradient)
            token = _Gate.apply(token, self._parameter_of[gradient.place], give)
        token = _Gate.apply(token, None, self._begin)
        self._wait_until(self.timeline.input_seconds + self.timeline.forward_seconds)
        return token

    def optimizer_step(self) -> None:
        """Wait as long as the optimizer took."""
        self._begin()
        self._wait_until(self.timeline.optimizer_seconds)

    def train_step(self, model: nn.Module) -> float:
        """Run a step of `model`, this one or the DDP around it; return its unstretched seconds."""
        began = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model().backward()
        self.optimizer_step()
        return (time.perf_counter() - began) / self.stretch
