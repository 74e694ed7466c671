"""Host allocator that keeps large blocks, and memory layout of 2-d convolutions.

glibc maps a block above its threshold afresh each time and unmaps it when freed. So every training
step pays first-touch page faults for every activation. With the thresholds raised, and huge pages
on, the same pages are used again. glibc reads its tunables when a process starts, so the launcher
sets environment variables for the processes that it starts. In any other process the thresholds,
though not the huge pages, are set while it runs.

In channels_last (NHWC) convolutions and batch norm read all channels of a pixel at once, on devices
that gain from it. Parameters, gradients, batches and results stay as the user has them. A compiled
model has the layout inside its graph (`compiler.passes.channels_last`). An uncompiled one computes
in it only where it is asked for by name, since the model's own code and hooks then see it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import threading
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.compiler.calls import Call, wrap_calls
from gallery_lib.config import Memory
from gallery_lib.data.loading.nesting import map_tensors
from gallery_lib.system import hardware

_TUNABLES = {
    "glibc.malloc.mmap_threshold": str(4 * 2**30),
    "glibc.malloc.trim_threshold": str(16 * 2**30),
    "glibc.malloc.hugetlb": "1",
}

KEEPS = "glibc keeps large blocks"
"""Beginning of the line that `keep_large_blocks` returns where it did its part."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, from malloc.h."""
_GIVEN_BACK_BYTES = 2**20
_TOUCHED_BYTES = 64 * 2**20
"""Size of one block that is prefaulted."""


def reason_not_applied() -> str | None:
    """Return why the tunables would have no effect here, or None."""
    library, version = platform.libc_ver()
    if library != "glibc":
        return f"the C library is {library or 'not glibc'}"
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 35):
        return f"glibc {version} is older than 2.35"
    if preload := os.environ.get("LD_PRELOAD", ""):
        for name in ("jemalloc", "tcmalloc", "mimalloc"):
            if name in preload:
                return f"{name} is preloaded and replaces glibc's allocator"
    return None


def trim() -> None:
    """Give freed memory of this process back to the kernel, where the C library can.

    A process that keeps large blocks for its steps would keep them for ever, from others too.
    """
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def allocator_variables() -> dict[str, str]:
    """Return `GLIBC_TUNABLES` with our values added to the user's own, which win.

    The result is empty where the tunables have no effect.
    """
    if reason_not_applied():
        return {}
    given = os.environ.get("GLIBC_TUNABLES", "").split(":")
    own = dict(pair.split("=", 1) for pair in given if "=" in pair)
    pairs = (f"{name}={value}" for name, value in {**_TUNABLES, **own}.items())
    return {"GLIBC_TUNABLES": ":".join(pairs)}


def has_tunables() -> bool:
    """Return whether this process was started with the tunables."""
    return "glibc.malloc.mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")


def keep_large_blocks() -> str:
    """Make this process keep large blocks; return a line on what was done, or why not."""
    if reason := reason_not_applied():
        return f"not applied: {reason}"
    if has_tunables():
        return KEEPS
    library = ctypes.CDLL(None)
    # mallopt takes an int, so 2 GiB is the most; 1 is success.
    kept = all(
        library.mallopt(parameter, 2**31 - 1) == 1
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    )
    if not kept:
        return "not applied: glibc refused the thresholds"
    return f"{KEEPS} (set at run time, without huge pages)"


def give_back() -> None:
    """Make this process give large blocks back as soon as they are freed.

    This is for many processes in little memory.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)


def touch_ahead(size: int) -> threading.Thread | None:
    """Start a thread that prefaults `size` bytes for the calling thread; return the thread.

    First-touch page faults take seconds for gigabytes; the new thread takes them early. The calling
    thread allocates the blocks, since each thread has an arena of its own. The new thread frees
    them. glibc then keeps them for the calling thread, after `keep_large_blocks`. Less is
    prefaulted where the system has less. Returns None where freed blocks are not kept, or `size` is
    not positive.
    """
    if reason_not_applied() or size <= 0:
        return None
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes, library.free.restype = (ctypes.c_void_p,), None
    blocks = [library.malloc(_TOUCHED_BYTES) for _ in range(-(-size // _TOUCHED_BYTES))]

    def touch() -> None:
        for block in blocks:
            if block:
                ctypes.memset(block, 0, _TOUCHED_BYTES)
                library.free(block)

    thread = threading.Thread(target=touch, name="touch_ahead", daemon=True)
    thread.start()
    return thread


# --------------------------------------------------------------------------------------------------
# Layout of convolutions.


_LIBRARIES = ("torch", "torchvision", "timm", "gallery_lib")


def memory_format(model: nn.Module, memory: Memory, device_type: str) -> torch.memory_format:
    """Return the memory format in which `memory` has the convolutions of a model run."""
    if memory.layout != "auto":
        return torch.channels_last if memory.layout == "channels_last" else torch.contiguous_format
    gains = hardware.prefers_channels_last(device_type) and any(
        isinstance(module, nn.Conv2d) for module in model.modules()
    )
    return torch.channels_last if gains else torch.contiguous_format


def convert_images(model: nn.Module) -> None:
    """Have an uncompiled `model` get 4-d inputs in channels_last; its results are contiguous."""

    def step(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_tensors(
            lambda tensor: _laid_out(tensor, torch.channels_last), (args, kwargs)
        )
        result = call(*args, **kwargs)
        return map_tensors(lambda tensor: _laid_out(tensor, torch.contiguous_format), result)

    wrap_calls(model, step)


def _laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    if tensor.dim() != 4 or tensor.layout is not torch.strided:
        return tensor
    return tensor.contiguous(memory_format=layout)


def takes_any_layout(model: nn.Module) -> bool:
    """Return whether all of a model's code is of libraries that are known to take channels_last."""
    return all(type(one).__module__.split(".")[0] in _LIBRARIES for one in model.modules())
