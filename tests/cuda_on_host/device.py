"""The CUDA path of an operator on the CPU: its kernels run in the shim, between guard pages.

What is registered for CUDA is called with tensors of the CPU. So the fallback, the layouts, the
memory between launches and their order are those of a device.

Guard pages show accesses outside of a tensor and writes beside one. A tensor lies in pages of its
own, with inaccessible pages before and after. It may start at the first byte (reads before it
fault), end at the last (reads after it fault), or lie anywhere between, for any alignment. All
other bytes are the poison 0xFF, which is NaN in every floating-point type. `check()` finds those
that were overwritten.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import torch
from cuda_on_host import host
from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.launch import Launch

PAGE = mmap.PAGESIZE
POISON = 0xFF
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """A tensor between guard pages: `tensor` is a contiguous copy of the values given.

    The pages live as long as a tensor in them does.
    """

    def __init__(self, values: torch.Tensor, offset_elements: int | None = None) -> None:
        """Copy `values` between guard pages.

        Args:
            values: what the tensor holds.
            offset_elements: distance of the start from the guard page before it; None: the end
                touches the guard page after it.
        """
        size = values.numel() * values.element_size()
        start = 0 if offset_elements is None else offset_elements * values.element_size()
        self._inside = max(1, -(-(start + size) // PAGE)) * PAGE
        whole = self._inside + 2 * PAGE
        modes = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = _libc.mmap(None, whole, *modes, -1, 0)
        assert address not in (None, ctypes.c_void_p(-1).value), f"mmap of {whole} bytes failed"
        for guard in (address, address + PAGE + self._inside):
            assert _libc.mprotect(guard, PAGE, 0) == 0
        buffer = (ctypes.c_uint8 * self._inside).from_address(address + PAGE)
        weakref.finalize(buffer, _libc.munmap, address, whole)
        self._bytes = torch.frombuffer(buffer, dtype=torch.uint8)
        self._bytes.fill_(POISON)
        self._start = self._inside - size if offset_elements is None else start
        self._size = size
        inner = self._bytes[self._start : self._start + size]
        self.tensor = (
            inner.view(values.dtype).view(values.shape) if size else values.new_empty(values.shape)
        )
        self.tensor.copy_(values)

    def check(self) -> None:
        """Raise AssertionError when a byte beside the tensor was written."""
        beside = torch.cat([self._bytes[: self._start], self._bytes[self._start + self._size :]])
        changed = (beside != POISON).nonzero()
        assert not len(changed), f"{len(changed)} bytes beside the tensor were overwritten"


class GuardedMemory:
    """Tensors between guard pages, all of which `check()` looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Guarded] = []

    def take(self, values: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        """Return a contiguous copy of the values between guard pages."""
        self.memory.append(Guarded(values, offset))
        return self.memory[-1].tensor

    def new(self, *shape: int, dtype: torch.dtype, offset: int | None = None) -> torch.Tensor:
        """Return a tensor between guard pages, poison until a kernel writes it."""
        result = self.take(torch.empty(shape, dtype=dtype), offset)
        if result.numel():
            result.view(torch.uint8).fill_(POISON)
        return result

    def check(self) -> None:
        """Raise AssertionError when a byte beside one of the tensors was written."""
        for guarded in self.memory:
            guarded.check()


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
        """Set the order of threads, and where new memory lies (see `Guarded`)."""
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
