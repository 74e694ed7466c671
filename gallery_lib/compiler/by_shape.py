"""Code of their own for input shapes that come again: `ByShape(model, make, limit)`.

Dynamo compiles the second shape of an input for all shapes, and every later batch runs that code,
which is not captured as a CUDA graph. So a smaller last batch, or an evaluation before training,
costs all later steps. Here shapes that come again have code of their own, and others share code.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib.comm import process_group
from gallery_lib.compiler.calls import Call
from gallery_lib.system.processes import tell

Shapes = tuple[Any, ...] | None

_MOST_COUNTED = 64
STATIC_SHAPES = 4
"""Most shapes with code of their own, of training and of evaluation: each takes a compilation."""
"""Shapes of all tensors among the arguments; None where a caller has marked dimensions."""

_KINDS = ("dynamic", "weak_dynamic", "unbacked", "strict_unbacked")
_MARKS = frozenset(f"_dynamo_{kind}_indices" for kind in _KINDS)
"""Attributes of tensors whose dimensions are marked as dynamic (torch 2.11 and 2.15)."""


class ByShape:
    """Calls of compiled code, chosen by the shapes of the inputs."""

    def __init__(self, model: nn.Module, make: Callable[[], Call], limit: int) -> None:
        """Make the first code with `make`; at most `limit` shapes get code of their own."""
        self._model, self._limit, self._said = model, limit, False
        # The first one now, so that an unknown backend is named here and not in a step.
        codes = itertools.chain([make()], iter(make, None))
        self._modes: dict[tuple[bool, bool], _Mode] = defaultdict(
            lambda: _Mode(functools.partial(next, codes))
        )

    def __call__(self, call: Call, *args: Any, **kwargs: Any) -> Any:
        """Run `call` with the code for these arguments."""
        mode = self._modes[self._model.training, torch.is_grad_enabled()]
        shapes = _shapes(args, kwargs) if self._limit else None
        compiled = mode.own.get(shapes) or mode.choose(shapes, self._limit)
        if compiled is mode.others and mode.own and not self._said:
            self._said = True
            if process_group.rank() == 0:
                tell(
                    f"{type(self._model).__name__}: inputs of another shape. Up to {self._limit} "
                    "shapes that come again are compiled for themselves, all others together"
                )
        return compiled(call, *args, **kwargs)


class _Mode:
    """Code for training or evaluation, with or without gradients."""

    def __init__(self, make: Callable[[], Call]) -> None:
        self._make = make
        self.own: dict[Shapes, Call] = {}
        self.others = make()
        self._calls: Counter[Shapes] = Counter()

    def choose(self, shapes: Shapes, limit: int) -> Call:
        """Return the code for shapes that have none of their own, and count the call."""
        calls = self._calls
        if shapes is None or len(self.own) >= limit:
            return self.others
        calls[shapes] += 1
        if len(calls) == 1 and calls[shapes] > 1:  # the code of others has seen no other shape
            self.own[shapes], self.others = self.others, self._make()
            calls.clear()
        elif calls[shapes] > 2 and 4 * calls[shapes] >= calls.total():  # every fourth call
            self.own[shapes] = self._make()
            calls[shapes] = 0  # and still counts among those that the code of others has seen
        elif len(calls) > _MOST_COUNTED:
            calls.clear()
            calls[None] = 1
        return self.own.get(shapes, self.others)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shapes:
    tensors = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    if any(one.is_nested or not _MARKS.isdisjoint(one.__dict__) for one in tensors):
        return None
    return tuple(one.shape for one in tensors)
