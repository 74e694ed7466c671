"""Entry points with descriptors of tensors whose contents are not true."""

from __future__ import annotations

import array
import ctypes
import random
from typing import Any


def damaged_descriptors(draw: random.Random) -> None:
    """Call entry points with descriptors of real memory whose contents are not true.

    Lengths, shapes and strides are wrong.
    """
    import torch

    from gallery_lib.kernels import compression_cpp, cpu_optimizers
    from gallery_lib.kernels.runtime import cpu_library, cpu_tensors

    shape, rows, columns = (
        draw.choice([(6,), (2, 3), (300,)]),
        draw.randint(0, 3),
        draw.randint(1, 5),
    )
    tensors = [torch.ones(shape) for _ in range(rows * columns)]
    numbers = list(cpu_tensors.described(tensors))
    fixed = 3 * len(tensors)  # addresses and what their storages hold stay true
    for _ in range(draw.randint(0, 3)):
        if len(numbers) > fixed:
            numbers[draw.randrange(fixed, len(numbers))] = draw.choice(
                [-1, 0, 1, 2, 3, 64, 65, 2**31, 2**62, -(2**63)]
            )
    numbers = numbers[: draw.choice([len(numbers)] * 3 + [draw.randint(0, len(numbers))])]
    memory = array.array("q", numbers)
    address, length = memory.buffer_info()
    address = None if draw.random() < 0.05 else address  # type: ignore[assignment]
    told = cpu_optimizers._Tensors(address, length, draw.choice([rows] * 4 + [-1, 0]), columns, 2)
    rates = (ctypes.c_float * rows)(*[1.0] * rows)
    place = draw.choice([ctypes.addressof(rates)] * 9 + [None])
    moments = (0.9, 0.99, 0.0, 1e-8, 1.0, 1.0, place, place, rows)
    options: dict[str, Any] = {
        "adam": cpu_optimizers._Adam(*moments),
        "radam": cpu_optimizers._RAdam(*moments),
        "sgd": cpu_optimizers._SGD(0.1, 0.0, 0.9, 1.0, 1),
        "rmsprop": cpu_optimizers._RMSprop(0.9, 0.1, 0.0, 1e-8, 0.9, 1.0),
    }
    if draw.random() < 0.7:
        name = draw.choice(list(options))
        source, arguments = cpu_optimizers.SOURCE, (ctypes.byref(told), ctypes.byref(options[name]))
    else:
        name, source = draw.choice(["pack_int8", "accumulate_int8"]), compression_cpp.SOURCE
        kind = (
            compression_cpp._PackArguments
            if name == "pack_int8"
            else compression_cpp._AccumulateArguments
        )
        arguments = (ctypes.byref(kind(address, length, 1)),)  # type: ignore[assignment]
    library = cpu_library.library(source)
    assert library is not None
    if draw.random() < 0.02:
        arguments = (None,) * len(arguments)  # type: ignore[assignment]
    code = cpu_tensors.entry(library, name)(*arguments)
    if code:
        raise ValueError(f"refused with {code & 0xFF}")
