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


def _cudnn_batch_norm(
    x: Tensor, weight: Tensor, bias: Any, mean: Any, variance: Any, training: bool, momentum: float,
    epsilon: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    result = aten.native_batch_norm(
        x, weight, bias, mean, variance, training, momentum, epsilon
    )
    return (*result, torch.empty(0, dtype=torch.uint8))


def _cudnn_batch_norm_backward(
    x: Tensor, gradient: Tensor, weight: Tensor, mean: Any, variance: Any, saved_mean: Any,
    saved_variance: Any, epsilon: float, reserve: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    return aten.native_batch_norm_backward(
        gradient, x, weight, mean, variance, saved_mean, saved_variance, True, epsilon,
        [True, True, True],
    )  # fmt: skip


def _lstm(
    x: Tensor, weights: list[Tensor], weight_stride: int, hx: Tensor, cx: Tensor, layers: int,
    batch_first: bool, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert dropout == 0, "dropout between the layers of an LSTM has no stand-in"
    return torch._VF.lstm(
        x, (hx, cx), weights, weight_stride == 4, layers, 0.0, train, bidirectional, batch_first
    )


_LSTM = 2  # cuDNN's number for it


def _cudnn_rnn(
    x: Tensor, weights: list[Tensor], weight_stride: int, buffer: Any, hx: Tensor, cx: Any,
    mode: int, hidden: int, projection: int, layers: int, batch_first: bool, dropout: float,
    train: bool, bidirectional: bool, batch_sizes: Any, state: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert mode == _LSTM and not batch_sizes, "only an LSTM over a whole batch has a stand-in"
    output, hy, cy = _lstm(
        x, weights, weight_stride, hx, cx, layers, batch_first, dropout, train, bidirectional
    )
    nothing = torch.empty(0, dtype=torch.uint8)
    return output, hy, cy, nothing, torch.empty(0, dtype=x.dtype)


def _cudnn_rnn_backward(
    x: Tensor, weights: list[Tensor], weight_stride: int, buffer: Any, hx: Tensor, cx: Any,
    output: Tensor, grad_output: Any, grad_hy: Any, grad_cy: Any, mode: int, hidden: int,
    projection: int, layers: int, batch_first: bool, dropout: float, train: bool,
    bidirectional: bool, batch_sizes: Any, state: Any, reserve: Any, mask: list[bool],
) -> tuple[Any, ...]:  # fmt: skip
    with torch.enable_grad():
        inputs = [each.detach().requires_grad_() for each in (x, hx, cx, *weights)]
        results = _lstm(
            inputs[0], inputs[3:], weight_stride, inputs[1], inputs[2], layers, batch_first,
            dropout, train, bidirectional,
        )  # fmt: skip
        given = [
            (result, gradient)
            for result, gradient in zip(results, (grad_output, grad_hy, grad_cy), strict=True)
            if gradient is not None
        ]
        grads = torch.autograd.grad(
            [result for result, _ in given], inputs, [gradient for _, gradient in given],
            allow_unused=True,
        )  # fmt: skip
    whole = [
        torch.zeros_like(each) if gradient is None else gradient
        for each, gradient in zip(inputs, grads, strict=True)
    ]
    return whole[0], whole[1], whole[2], whole[3:]


MATHEMATICS: dict[str, Callable[..., Any]] = {
    "aten::cudnn_batch_norm": _cudnn_batch_norm,
    "aten::cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    "aten::_cudnn_rnn": _cudnn_rnn,
    "aten::_cudnn_rnn_backward": _cudnn_rnn_backward,
}
