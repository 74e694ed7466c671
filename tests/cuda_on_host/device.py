"""The CUDA path of an operator on the CPU: its kernels run in the shim, between guard pages.

What is registered for CUDA is called with tensors of the CPU. So the fallback, the layouts, the
memory between launches and their order are those of a device.
"""

from __future__ import annotations

from typing import Any

import torch
from cuda_on_host import host
from cuda_on_host.memory import GuardedMemory
from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.launch import Launch

_ATEN = torch.ops.aten
_NEW_MEMORY = {
    _ATEN.empty.memory_format,
    _ATEN.empty_like.default,
    _ATEN.new_empty.default,
    _ATEN.empty_strided.default,
}
_KEYS = {
    name: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in ("CPU", "CUDA")
}


def on(device: str, name: str, *arguments: Any) -> Any:
    """Return what `gallery::<name>` returns on the CPU or on CUDA; the tensors may be anywhere."""
    return getattr(torch.ops.gallery, name).default.redispatch(_KEYS[device], *arguments)


class HostDevice(GuardedMemory, TorchDispatchMode):
    """Memory and launches of a device. What an operator allocates here begins as poison."""

    def __init__(self, schedule: int = 0, offset: int | None = None) -> None:
        """Set the order of threads, and where new memory lies (see `memory.Guarded`)."""
        super().__init__()
        self.schedule, self.offset = schedule, offset
        self.launched: list[str] = []

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what the operator returns on CUDA, and check the memory of all tensors."""
        with launch.carried_out_by(self._carry_out), self:
            result = on("CUDA", name, *arguments)
        self.check()
        return result

    def _carry_out(self, each: Launch) -> None:
        self.launched.append(each.kernel)
        host.run(each, self.schedule)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operator of torch's; what is new memory lies between guard pages."""
        result = function(*args, **(kwargs or {}))
        if function not in _NEW_MEMORY or not result.numel():
            return result
        flat = self.new(result.numel(), dtype=result.dtype, offset=self.offset)
        return flat.as_strided(result.shape, result.stride())
