"""State of a GPU at work: clocks, power, what slows it, and who else uses it.

NVML tells it without a context on the device, in a fraction of a millisecond. Clocks are read, and
never locked. Where NVML does not answer, nothing is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from gallery_lib.system import hardware

CLOCKS_APART = 0.03
"""Relative difference of two forms' clocks beyond which their steps give no speed-up."""
_IDLE = "idleness"
# Bits of nvmlClocksThrottleReasons.
_SLOWED_BY = {0x1: _IDLE, 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware"}
_SLOWED_BY |= {0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
# An nvmlProcessInfo_t as numbers: the first is the process's id.
_PROCESSES = ctypes.c_uint * 6 * 256


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment, or over several as medians: clocks in MHz, power in W."""

    processors: float
    memory: float
    watts: float
    slowed_by: list[str]

    def __str__(self) -> str:
        """Return `1,755 MHz, memory at 2,619 MHz, 640 W, slowed by power cap`."""
        text = f"{self.processors:,.0f} MHz, memory at {self.memory:,.0f} MHz, {self.watts:.0f} W"
        return f"{text}, slowed by {' and '.join(self.slowed_by)}" if self.slowed_by else text


@functools.cache
def _nvml() -> Any:
    with contextlib.suppress(OSError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None


def _ask(function: str, kind: Any, *arguments: Any) -> Any:
    """Return NVML's answer, a value of the ctypes `kind`; LookupError where it has none."""
    answer, call = kind(), getattr(_nvml(), function, None)
    if call is None or call(*arguments, ctypes.byref(answer)):
        raise LookupError(function)
    return answer.value


def _device(bus: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(_ask("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_void_p, bus.encode()))


def look(bus: str) -> GpuState | None:
    """Return the GPU at this address of the PCI bus as it is now; None where NVML does not say."""
    with contextlib.suppress(LookupError):
        gpu, number = _device(bus), ctypes.c_uint
        processors, memory = (_ask("nvmlDeviceGetClockInfo", number, gpu, of) for of in (1, 2))
        watts = _ask("nvmlDeviceGetPowerUsage", number, gpu) / 1000
        bits = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, gpu)
        slowed_by = [what for bit, what in _SLOWED_BY.items() if bits & bit]
        return GpuState(processors, memory, watts, slowed_by)
    return None


def at_work(looks: Iterable[GpuState]) -> GpuState | None:
    """Return the state over the looks at which the GPU was not idle; None where there was none."""
    busy = [one for one in looks if _IDLE not in one.slowed_by]
    if not busy:
        return None
    clocks = (median(one.processors for one in busy), median(one.memory for one in busy))
    reasons = dict.fromkeys(reason for one in busy for reason in one.slowed_by)
    return GpuState(*clocks, median(one.watts for one in busy), list(reasons))


def clocks_apart(*states: GpuState | None) -> bool:
    """Return whether forms ran at clocks too far apart for a speed-up, as far as is known."""
    known = [(state.processors, state.memory) for state in states if state is not None]
    return any(max(one) > (1 + CLOCKS_APART) * min(one) for one in zip(*known, strict=True))


def other_processes(root: int | None) -> int | None:
    """Return how many processes use the visible GPUs beside `root` (None: this) and those below it.

    Of several GPUs those count that one of the own processes uses. Returns None where there is
    none, or where NVML does not say. In a container it may have other numbers for processes.
    """
    users: list[set[int]] = []  # by GPU
    with contextlib.suppress(LookupError, AttributeError, psutil.Error):
        for gpu in hardware.visible_gpus() if _nvml() else ():
            found = _PROCESSES()
            count = ctypes.c_uint(len(found))
            arguments = _device(gpu.bus), ctypes.byref(count), found
            if not _nvml().nvmlDeviceGetComputeRunningProcesses_v3(*arguments):
                users.append({numbers[0] for numbers in found[: count.value]})
        if not any(users):
            return None
        process = psutil.Process(root)
        own = {one.pid for one in (process, *process.children(recursive=True))}
        shared = [on_one for on_one in users if on_one & own]
        return len(set().union(*shared) - own) if shared else None
    return None
