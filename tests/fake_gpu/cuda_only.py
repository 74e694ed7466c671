"""Mathematics, on the CPU, of operators that torch has for CUDA alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

COMPOSED = ("aten::convolution",)
"""Operators that choose among kernels of CUDA's libraries: they run as a whole."""

FOLLOW_CHANNELS_LAST = frozenset({"aten::convolution", "aten::convolution_backward"})
"""Operators whose results are in channels_last if one of their inputs is."""


def _lstm_cell(
    of_input: Tensor, of_state: Tensor, cx: Tensor, input_bias: Any = None, state_bias: Any = None
) -> tuple[Tensor, ...]:
    """Return the new output and state of an LSTM's cell, and its gates for the way back."""
    sums = of_input.float() + of_state.float()
    for bias in (input_bias, state_bias):
        sums = sums if bias is None else sums + bias.float()
    i, f, g, o = sums.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx.float() + i * g
    hy, gates = o * cy.tanh(), torch.cat([i, f, g, o], 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), gates.to(of_input.dtype)


def _lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    i, f, g, o = gates.float().chunk(4, 1)
    squashed = cy.float().tanh()
    of_hy = torch.zeros_like(squashed) if grad_hy is None else grad_hy.float()
    of_cy = of_hy * o * (1 - squashed**2) + (0 if grad_cy is None else grad_cy.float())
    of_gates = torch.cat(
        [
            of_cy * g * i * (1 - i),
            of_cy * cx.float() * f * (1 - f),
            of_cy * i * (1 - g**2),
            of_hy * squashed * o * (1 - o),
        ],
        1,
    )
    of_bias = of_gates.sum(0).to(gates.dtype) if has_bias else None
    return of_gates.to(gates.dtype), (of_cy * f).to(cx.dtype), of_bias


MATHEMATICS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
