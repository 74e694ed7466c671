"""Call of what an operator has registered for a kind of device, with tensors that are elsewhere."""

from __future__ import annotations

from typing import Any

import torch

DEVICES = {
    "CPU": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
    "CUDA": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}


def on(device: str, name: str, *arguments: Any) -> Any:
    """Return what `gallery::<name>` returns on the CPU or on CUDA; the tensors may be anywhere."""
    operator = getattr(torch.ops.gallery, name).default
    return operator.redispatch(DEVICES[device], *arguments)
