"""Copy of a state in host memory, in which it is written while the training goes on.

The memory is kept and used again for the next checkpoint: first-touch page faults would otherwise
cost as much as the copy each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class Staging:
    """Buffers for the tensors of a state, by name."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies that stay as they are until the next call. Tied tensors share one copy."""
        copies: dict[str, Tensor] = {}
        by_memory: dict[Any, Tensor] = {}
        waits = False
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor = tensor.detach()
                place = (
                    tensor.data_ptr(),
                    tensor.shape,
                    tensor.stride(),
                    tensor.dtype,
                    tensor.device,
                )
                if tensor.numel() and place in by_memory:
                    copies[name] = by_memory[place]
                    continue
                buffer = self._buffer(name, tensor)
                buffer.copy_(tensor, non_blocking=tensor.is_cuda)
                waits = waits or tensor.is_cuda
                copies[name] = by_memory[place] = buffer
        if waits:
            torch.cuda.current_stream().synchronize()
        self._buffers = {name: self._buffers[name] for name in copies if name in self._buffers}
        return copies

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if (
            buffer is None
            or buffer.shape != tensor.shape
            or buffer.dtype != tensor.dtype
            or buffer.stride() != tensor.stride()
        ):
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer
        return buffer


def copied(value: Any) -> Any:
    """Return a nested value with every tensor copied to the host."""
    return tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, value
    )
