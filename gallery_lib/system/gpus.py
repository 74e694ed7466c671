"""Names and compute capabilities of the visible GPUs, without a CUDA context in this process.

NVML, which comes with the driver, knows them. Where it is missing or does not tell (some devices of
an SoC, slices of a GPU), a short child process asks CUDA. A process that uses CUDA already asks it
itself.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from dataclasses import dataclass

from gallery_lib.system.processes import printed_by

_NAME_BYTES = 96
_QUESTION = """
import json, torch
devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([[one.name, one.major, one.minor] for one in devices]))
"""


@dataclass(frozen=True)
class Gpu:
    """A device as the driver describes it."""

    name: str
    capability: tuple[int, int]  # compute capability, major and minor


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    Raises:
        RunFailed: when there are devices, and CUDA does not work.
    """
    import torch

    if torch.cuda.is_initialized():
        return tuple(
            Gpu(one.name, (one.major, one.minor))
            for one in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        )
    count = torch.cuda.device_count()
    return _asked(count, os.environ.get("CUDA_VISIBLE_DEVICES")) if count else ()


@functools.cache
def _asked(count: int, visible: str | None) -> tuple[Gpu, ...]:
    """Return the `count` devices; `visible` is what decides which they are."""
    try:
        return _of_nvml(count)
    except (OSError, AttributeError, RuntimeError, TypeError, IndexError, ValueError):
        pass  # no NVML, an older one, or a device that it does not know by this name
    answers = json.loads(printed_by(["-c", _QUESTION], "which GPUs this machine has"))
    return tuple(Gpu(name, (major, minor)) for name, major, minor in answers)


def _of_nvml(count: int) -> tuple[Gpu, ...]:
    """Return the devices as NVML describes them.

    Raises:
        OSError: without NVML.
        RuntimeError: when it refuses an answer.
    """
    import torch

    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def ask(function: str, *arguments: object) -> None:
        if code := getattr(nvml, function)(*arguments):
            raise RuntimeError(f"{function} returned {code}")

    ask("nvmlInit_v2")
    gpus = []
    for number in range(count):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
        major, minor = ctypes.c_int(), ctypes.c_int()
        index = torch.cuda._get_nvml_device_index(number)
        ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        ask("nvmlDeviceGetName", device, name, _NAME_BYTES)
        capability = ctypes.byref(major), ctypes.byref(minor)
        ask("nvmlDeviceGetCudaComputeCapability", device, *capability)
        gpus.append(Gpu(name.value.decode(), (major.value, minor.value)))
    return tuple(gpus)
