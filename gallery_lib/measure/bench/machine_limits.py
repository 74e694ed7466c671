"""Limits of this machine for matrix products and copies, as ceilings for what it trains.

They are measured in the same run as the figures that they are compared with. On a GPU a short
process, which runs this module, measures them, so that its memory is free for the runs.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from gallery_lib.system import hardware
from gallery_lib.system.processes import printed_by

# A CPU that emulates bfloat16 by plain loops would take 14 s for the largest product.
_LONGEST_PRODUCT = 1.0
_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (512, 2048, 8192)}
_COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
_PART_OF_DEVICE = 8  # a copy takes at most two such parts of what is free


def best_seconds(body: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    """Return the shortest time of so many calls, in seconds."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        body()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


def prepared_product(device: torch.device, dtype: torch.dtype) -> tuple[Callable[[], Any], float]:
    """Return the largest product that takes at most a second, to be run, and its FLOPs."""
    rate, chosen = 0.0, None
    for size in _SIZES[device.type]:
        flops = 2.0 * size**3
        if chosen is not None and flops / rate > _LONGEST_PRODUCT:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = functools.partial(torch.mm, a, b, out=torch.empty_like(a))
        product()
        rate, chosen = flops / best_seconds(product, device, repeats=1), (product, flops)
    assert chosen is not None
    return chosen


def prepared_copy(device: torch.device) -> tuple[Callable[[], Any], float]:
    """Return a copy between two large arrays, to be run, and the bytes that it reads and writes."""
    copied = _COPY_BYTES[device.type]
    if device.type == "cuda":
        copied = min(copied, torch.cuda.mem_get_info(device)[0] // _PART_OF_DEVICE)
    source = torch.randn(copied // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return functools.partial(target.copy_, source), 2.0 * source.numel() * source.element_size()


def measure_limits(
    device: torch.device, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
) -> dict[str, float]:
    """Return the best FLOP/s of matrix products by dtype, and as `copy` the bytes/s of a copy."""
    limits = {}
    for dtype in dtypes:
        product, flops = prepared_product(device, dtype)
        limits[str(dtype).removeprefix("torch.")] = flops / best_seconds(product, device)
    copy, moved = prepared_copy(device)
    return {**limits, "copy": moved / best_seconds(copy, device)}


def limits_of_whole_machine() -> dict[str, float]:
    """Measure the limits of all cores, or of the first GPU; RunFailed where memory is short."""
    if hardware.gpu_count():
        limits: dict[str, float] = json.loads(
            printed_by(["-m", __name__], "what this GPU can do at most")
        )
        return limits
    before = torch.get_num_threads()
    torch.set_num_threads(hardware.cores())
    try:
        return measure_limits(torch.device("cpu"))
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    print(json.dumps(measure_limits(torch.device("cuda"))))
