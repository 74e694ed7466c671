"""Cases of gradients on the wire: packing with error feedback, and averaging what ranks sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gallery_lib.kernels import compression, compression_reference
from kernel_cases.case import Build, Call, Case


def pack(wire: str) -> Build:
    """Return the case of packing 25 million fp32 gradients for the wire, with error feedback.

    The baseline is the same in plain torch.
    """

    def build(device: torch.device, small: bool) -> Case:
        torch.manual_seed(0)
        # The packed size is a multiple of 16 bytes, since padding may hold any values.
        gradient = torch.randn(1008 if small else 25_000_000, device=device)
        errors = [torch.zeros_like(gradient) for _ in range(3)]

        def ours() -> tuple[Tensor, Tensor]:
            return compression.pack(gradient, wire, errors[0]), errors[0]

        def by(function: Callable[..., Tensor], error: Tensor) -> Call:
            return lambda: (function(gradient, error, wire), error)

        bytes_of_element = 12 + (1 if wire == "int8" else 2)
        reference = compression_reference.reference_pack
        calls = (ours, by(reference, errors[1]))
        return Case(
            *calls,
            lambda: by(torch.compile(reference), errors[2]),
            bytes_of_element * gradient.numel(),
            None,
        )

    return build


def accumulate(wire: str) -> Build:
    """Return the case of averaging what 8 ranks sent of 25 million gradients.

    The baseline is the same in plain torch.
    """

    def build(device: torch.device, small: bool) -> Case:
        torch.manual_seed(0)
        gradient = torch.randn(1000 if small else 25_000_000, device=device)
        packed = torch.stack([compression.pack(gradient * (rank + 1), wire) for rank in range(8)])
        sums = [torch.zeros_like(gradient) for _ in range(3)]

        def ours() -> Tensor:
            compression.accumulate_(sums[0], packed, wire, factor=1 / 8, add=False)
            return sums[0]

        def by(function: Callable[..., None], sum: Tensor) -> Call:
            def call() -> Tensor:
                function(sum, packed, wire, 1 / 8, False)
                return sum

            return call

        reference = compression_reference.reference_accumulate
        calls = (ours, by(reference, sums[1]))
        return Case(
            *calls,
            lambda: by(torch.compile(reference), sums[2]),
            packed.numel() + 4 * gradient.numel(),
            None,
        )

    return build
