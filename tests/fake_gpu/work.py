"""Work on the fake device that is Python: enqueued now, done when the device comes to it.

`alias()` gives the CPU tensor over a CUDA tensor's memory, on which the work is done. `counts()`
tells what a program has asked of the device, `failures()` what went wrong there.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LIBRARY = ctypes.CDLL("libcuda.so.1")
LIBRARY.fake_gpu_enqueue_python.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_long]
LIBRARY.fake_gpu_forbidden_wait.restype = ctypes.c_char_p

_work: dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)
_failures: list[BaseException] = []


def alias(tensor: Tensor) -> Tensor:
    """Return a CPU tensor over the memory of a CUDA tensor, which it does not keep alive."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        memory = torch.UntypedStorage(0)
    else:
        memory = torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), torch.device("cpu"), storage.nbytes()
        )
    result = torch.empty(0, dtype=tensor.dtype, device="cpu")
    result.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())
    return result


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_long, ctypes.c_int)
def _run(number: int, last: int) -> int:
    work = _work.pop(number) if last else _work[number]
    try:
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            work()
    except BaseException as error:
        traceback.print_exc()
        _failures.append(error)
        return 1
    return 0


def enqueue(name: str, work: Callable[[], None], device: torch.device | None = None) -> None:
    """Let the current stream of `device` do `work` when its turn comes."""
    number = next(_numbers)
    _work[number] = work
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    with torch.cuda.device(index):
        LIBRARY.fake_gpu_enqueue_python(stream, name.encode(), number)


def wait(device: torch.device | None = None) -> None:
    """Wait for the current stream, as an operator does whose result has an unknown shape."""
    torch.cuda.current_stream(device).synchronize()


@contextlib.contextmanager
def waiting_forbidden() -> Iterator[None]:
    """Context: whatever makes the host wait for the device is an error."""
    LIBRARY.fake_gpu_forbid_waiting(1)
    try:
        yield
    finally:
        LIBRARY.fake_gpu_forbid_waiting(0)


@contextlib.contextmanager
def on_a_side_stream(device: torch.device | None = None) -> Iterator[None]:
    """Context: work goes to a stream of its own, after what is enqueued and before what follows."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)


def begin() -> None:
    """Let the device call this process's Python for the work that it comes to."""
    LIBRARY.fake_gpu_python(_run)


def counts() -> Counter[str]:
    """Return how often each function was called and each kernel launched since the last reset.

    Names begin with "call " or "launch ". Operators of torch count as one launch each.
    """
    text = ctypes.create_string_buffer(LIBRARY.fake_gpu_report(None, 0) + 4096)
    LIBRARY.fake_gpu_report(text, len(text))
    lines = (line.split("\t") for line in text.value.decode().splitlines())
    return Counter({f"{kind} {name}": int(times) for kind, name, times in lines})


def failures() -> list[BaseException]:
    """Return what went wrong in work on the device since the last call, and begin anew."""
    found = list(_failures)
    _failures.clear()
    LIBRARY.fake_gpu_reset()
    return found
