"""Limits of this machine for matrix products and copies, as ceilings for what it trains.

They are measured in the same run as the figures that they are compared with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from gallery_lib.system import hardware


@dataclass(frozen=True)
class Limits:
    """Rates reached by torch's own matrix product and copy: the ceilings of a training step."""

    matmul_flops_per_second: dict[str, float]  # by dtype
    copy_bytes_per_second: float  # bytes read plus bytes written


def _best_seconds(body: object, device: torch.device, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        body()  # type: ignore[operator]
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


_LONGEST_PRODUCT = 1.0
"""Longest time of a product in seconds.

A CPU that emulates bfloat16 by plain loops would take 14 s for the largest product.
"""


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of the largest product that does not take too long."""
    rate = 0.0
    for size in (8192,) if device.type == "cuda" else (256, 512, 1024, 2048):
        flops = 2.0 * size**3
        if rate and flops / rate > _LONGEST_PRODUCT:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        torch.mm(a, b, out=out)
        rate = flops / _best_seconds(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device)
    return rate


def measure_limits(
    device: torch.device, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
) -> Limits:
    """Measure a square matrix product of random numbers, and a copy; return the best of five.

    The product's size is 8192 on CUDA. On the CPU it is 2048, or half as large once or more often
    where that takes over a second. The copy moves 2 GiB on CUDA and 256 MiB on the CPU.
    """
    products = {str(dtype).removeprefix("torch."): _product_rate(device, dtype) for dtype in dtypes}
    source = torch.randn((2**31 if device.type == "cuda" else 2**28) // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = _best_seconds(lambda: target.copy_(source), device)
    return Limits(products, 2.0 * source.numel() * source.element_size() / seconds)


def limits_of_whole_machine() -> dict[str, float]:
    """Measure the limits of all cores, or of the first GPU, now.

    The result holds the FLOP/s of matrix products by dtype, and as `copy` the bytes/s.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(hardware.cores())
    try:
        limits = measure_limits(torch.device(hardware.device_type()))
    finally:
        torch.set_num_threads(before)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return {**limits.matmul_flops_per_second, "copy": limits.copy_bytes_per_second}
