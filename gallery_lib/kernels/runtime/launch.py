"""Kernel launches as plain data, and their execution on torch's current stream.

Every kernel of ours takes one structure by value, so a launch is plain data. CUDA graphs need the
same: nothing has to be copied to the device beforehand, and a captured launch keeps its arguments.
The launch goes through the driver's `cuLaunchKernel`, since cuda-core's `launch` takes no
structures (NVIDIA/cuda-python#2343).

Lists of tensors are packed into the structure of `cuda/tensor_list.cuh`, and split over as many
launches as they need. A table in device memory would have to be copied there whenever an address
changes, and gradients get new addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import GalleryError
from gallery_lib.kernels.runtime.nvrtc import Defines, compiled, versions

THREADS = 256
"""Threads of a block in all kernels; the sources are written for this number."""
ELEMENTS: dict[torch.dtype, Defines] = {
    torch.float32: (("ELEMENT", "float"),),
    torch.bfloat16: (("ELEMENT", "__nv_bfloat16"),),
    torch.float16: (("ELEMENT", "__half"),),
}
"""Defines of every source for elements of a dtype."""
POINTER, INT, LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
FLOAT, DOUBLE = ctypes.c_float, ctypes.c_double
CHUNK, FEW_TENSORS, MANY_TENSORS = 8192, 48, 512
"""CHUNK: elements of a tensor that one block works on. TENSORS: the most of a launch that takes
4096 bytes of arguments, or 32,764."""


@functools.cache
def structure(**fields: type) -> type[ctypes.Structure]:
    """Return the ctypes class of a structure with these fields, in their order."""
    return type("Arguments", (ctypes.Structure,), {"_fields_": list(fields.items())})


def each(kind: type, names: str) -> dict[str, type]:
    """Return fields of one type for `structure`; their names are words of `names`."""
    return dict.fromkeys(names.split(), kind)


def filled(kind: type[ctypes.Structure], *values: Any) -> ctypes.Structure:
    """Return the structure with the values, where a tensor stands for its address."""
    return kind(*(each.data_ptr() if isinstance(each, Tensor) else each for each in values))


@dataclass(frozen=True)
class Launch:
    """Plain data of one kernel launch.

    `kernel` of `source`, compiled with `defines`, runs as `blocks` blocks of THREADS threads.
    """

    source: str
    kernel: str
    defines: Defines
    blocks: int
    arguments: ctypes.Structure


_host: ContextVar[Callable[[Launch], None] | None] = ContextVar("_host", default=None)


@contextlib.contextmanager
def carried_out_by(host: Callable[[Launch], None]) -> Iterator[None]:
    """Context: `host` carries out what is launched, on tensors of the CPU. This is for tests."""
    token = _host.set(host)
    try:
        yield
    finally:
        _host.reset(token)


def on_host() -> bool:
    """Return whether launches are carried out on the CPU here."""
    return _host.get() is not None


class LaunchFailed(GalleryError, RuntimeError):
    """Error: the driver refused to load or to start a kernel."""


@functools.cache
def architecture(device: torch.device) -> int:
    """Return the architecture of `device`: 75 for compute capability 7.5, and so on."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def _launcher(source: str, kernel: str, defines: Defines, device_index: int) -> Callable[..., str]:
    """Return a call that enqueues a kernel: (blocks, stream, address of arguments) → error or "".

    The first call compiles and loads the kernel, so it must not happen inside a graph capture. What
    does not change between launches is looked up here, once: a step has hundreds of them.
    """
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    machine_code = compiled(source, defines, architecture(torch.device("cuda", device_index)))
    code = ObjectCode.from_cubin(machine_code.cubin, name=source)
    loaded = code.get_kernel(kernel)  # the call keeps it: the handle lives as long as its owner
    function = driver.CUfunction(int(loaded.handle))
    launch_kernel, success = driver.cuLaunchKernel, driver.CUresult.CUDA_SUCCESS

    def enqueue(blocks: int, stream: int, arguments: int, _owner: object = loaded) -> str:
        parameters = ctypes.c_void_p(arguments)
        (error,) = launch_kernel(
            function, blocks, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(parameters), 0
        )
        return "" if error == success else str(error.name)

    return enqueue


def run(launch: Launch, device: torch.device) -> None:
    """Enqueue the launch on torch's current stream of `device`, without waiting."""
    if launch.blocks == 0:
        return
    if (host := _host.get()) is not None:
        host(launch)
        return
    current = torch._C._cuda_getDevice()
    index = current if device.index is None else device.index
    if index != current:
        with torch.cuda.device(index):
            run(launch, device)
        return
    error = _launcher(launch.source, launch.kernel, launch.defines, index)(
        launch.blocks,
        torch._C._cuda_getCurrentRawStream(index),
        ctypes.addressof(launch.arguments),
    )
    if error:
        raise LaunchFailed(
            f"{launch.kernel} of {launch.source} could not be launched with {launch.blocks} "
            f"blocks: {error}"
        )


def enqueue(
    source: str, kernel: str, like: Tensor, blocks: int, kind: type[ctypes.Structure], *values: Any
) -> None:
    """Launch a kernel for elements of the dtype of `like`, on its device.

    The values fill the kernel's structure, where a tensor stands for its address. Copies among them
    have to live until then.
    """
    run(Launch(source, kernel, ELEMENTS[like.dtype], blocks, filled(kind, *values)), like.device)


# --------------------------------------------------------------------------------------------------
# Lists of tensors.


@functools.cache
def tensors_of_a_launch(device: torch.device) -> int:
    """Return the most tensors of a launch; since sm_70 and CUDA 12.1 arguments may be longer."""
    if device.type != "cuda":
        return FEW_TENSORS
    from cuda.bindings import driver

    _, of_driver = driver.cuDriverGetVersion()
    of_nvrtc = tuple(map(int, versions()["nvrtc"].split(".")))
    many = architecture(device) >= 70 and of_driver >= 12010 and of_nvrtc >= (12, 1)
    return MANY_TENSORS if many else FEW_TENSORS


@functools.cache
def tensor_list(lists: int, tensors: int) -> type[ctypes.Structure]:
    """Return the ctypes class of `TensorList<lists>` for so many tensors of a launch."""
    fields = [
        ("pointers", ctypes.c_void_p * tensors * lists),
        ("sizes", ctypes.c_longlong * tensors),
        ("first_block", ctypes.c_uint * (tensors + 1)),
        ("count", ctypes.c_uint),
    ]
    return type(f"TensorList{lists}", (ctypes.Structure,), {"_fields_": fields})


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Return whether elements of the same index lie at the same distance from the start.

    The stride of a dimension of size 1 means nothing.
    """
    if one.shape != other.shape:
        return False
    if one.stride() == other.stride():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.numel() <= 1 or all(a == b for size, a, b in strides if size > 1)


def laid_out_as(weights: Sequence[Tensor], column: Sequence[Tensor]) -> list[Tensor]:
    """Return the column with every tensor in its weight's memory layout.

    A tensor with another layout is replaced by a copy.
    """
    return [
        tensor if same_layout(weight, tensor) else torch.empty_like(weight).copy_(tensor)
        for weight, tensor in zip(weights, column, strict=True)
    ]


def is_dense(tensor: Tensor) -> bool:
    """Return whether the tensor has every element of the memory it spans exactly once.

    The dimensions may be in any order (channels_last, for instance).
    """
    if tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last):
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size != 1
    ):
        if tensor.numel() and stride != expected:
            return False
        expected *= size
    return True


def packed(
    columns: Sequence[Sequence[Tensor] | None], tensors: int
) -> Iterator[tuple[ctypes.Structure, int]]:
    """Yield (structure, blocks) for each launch of at most `tensors` tensors.

    `columns[0]` gives the sizes; None becomes null pointers.
    """
    kind = tensor_list(len(columns), tensors)
    addresses = [[tensor.data_ptr() for tensor in column or ()] for column in columns]
    sizes = [tensor.numel() for tensor in columns[0] or ()]
    for begin in range(0, len(sizes), tensors):
        part = slice(begin, begin + tensors)
        packing, of_part = kind(), sizes[part]
        first_block = [0, *itertools.accumulate(-(-size // CHUNK) for size in of_part)]
        packing.count = count = len(of_part)
        packing.sizes[:count] = of_part
        packing.first_block[: count + 1] = first_block
        for pointers, column in zip(packing.pointers, addresses, strict=True):
            if column:
                pointers[:count] = column[part]
        yield packing, first_block[-1]
