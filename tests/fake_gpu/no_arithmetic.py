"""The fake device without arithmetic: what a step asks of the host, and nothing else.

torch's own kernels are launched and counted, so the host does what it does for a real device.
Operators of cuDNN and cuBLAS, which need one, only give memory for their results. Each of them
counts as one launch. Values are whatever the memory holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from fake_gpu import work
from fake_gpu.operators import layout_of
from torch import Tensor

_libraries: list[torch.library.Library] = []
"""What was registered; it lasts as long as the object."""


def _convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any
) -> Tensor:
    transposed, output_padding, groups = rest
    shape = torch.ops.aten.convolution(
        torch.empty(x.shape, device="meta"), torch.empty(weight.shape, device="meta"),
        None, stride, padding, dilation, transposed, output_padding, groups,
    ).shape  # fmt: skip
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout_of(x, weight))


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any
) -> tuple[Tensor | None, ...]:
    of_x, of_weight, of_bias = rest[-1]
    return (
        torch.empty_like(x) if of_x else None,
        torch.empty_like(weight) if of_weight else None,
        weight.new_empty(weight.shape[0]) if of_bias else None,
    )


def _batch_norm(x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    channels = x.shape[1]
    statistics = (x.new_empty(channels, dtype=torch.float32) for _ in range(2))
    return (torch.empty_like(x), *statistics, x.new_empty(16, dtype=torch.uint8))


def _batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _addmm(added: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Tensor:
    return _mm(a, b)


def _into(*operands: Any, out: Tensor, **scales: Any) -> Tensor:
    return out


_STAND_INS: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    **dict.fromkeys(("mm", "bmm"), _mm),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    **dict.fromkeys(("mm.out", "bmm.out", "addmm.out", "baddbmm.out"), _into),
}


def install() -> None:
    """Let operators of cuDNN and cuBLAS give memory, and count as a launch each."""
    import torch._dynamo

    work.begin()
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name, stand_in in _STAND_INS.items():

        def counted(*arguments: Any, _of: Any = stand_in, _name: str = name, **named: Any) -> Any:
            stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
            work.LIBRARY.fake_gpu_launched(ctypes.c_void_p(stream), _name.encode())
            return _of(*arguments, **named)

        library.impl(name, torch._dynamo.disable(counted), "CUDA", allow_override=True)
