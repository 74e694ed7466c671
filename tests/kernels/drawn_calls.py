"""Calls of the C++ of `kernels/cpu` with drawn tensors, which fit together or do not."""

from __future__ import annotations

import array
import ctypes
import random
from collections.abc import Callable
from typing import Any

import torch

from gallery_lib.kernels import (
    batch_norm_statistics,
    compression,
    cpu_optimizers,
    cross_entropy,
    dropout_mask,  # noqa: F401  registers the operator
    max_pool,
    mixed_product,
)
from gallery_lib.kernels.runtime import cpp
from gallery_lib.optim import fused_cpu


def drawn_tensor(draw: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor in one of many layouts, or a broken one.

    Its storage ends where its last element does.
    """
    plain = torch.empty(shape, dtype=torch.float64).uniform_(-100, 100).to(dtype)
    way = draw.choice(
        ["plain"] * 6 + ["turned", "gaps", "expanded", "part", "shrunk", "gone", "shifted"]
    )
    if way == "turned":
        order = tuple(range(len(shape)))[::-1]
        return plain.permute(order).contiguous().permute(order)
    if way == "gaps" and shape:
        return torch.empty(*shape, 2, dtype=dtype).fill_(1)[..., 0]
    if way == "expanded" and shape and plain.numel():
        return plain.flatten()[:1].clone().reshape([1] * len(shape)).expand(shape)
    if way == "part":
        return torch.ones(plain.numel() + 3, dtype=dtype)[3:].reshape(shape)
    if way == "shrunk" and plain.numel() > 1:
        plain.untyped_storage().resize_(plain.untyped_storage().nbytes() // 2)
    if way == "gone":
        plain.untyped_storage().resize_(0)
    if way == "shifted" and plain.numel() and not dtype.is_complex:
        size = plain.element_size()
        return torch.frombuffer(
            bytearray(plain.numel() * size + 1), dtype=dtype, offset=1, count=plain.numel()
        ).reshape(shape)
    return plain


def drawn_shape(draw: random.Random) -> tuple[int, ...]:
    return draw.choice(
        [
            (),
            (0,),
            (1,),
            (7,),
            (255,),
            (256,),
            (257,),
            (3, 5),
            (2, 3, 4, 5),
            (0, 4),
            (40000,),
            (1, 9, 1),
        ]
    )


def drawn_dtype(draw: random.Random) -> Any:
    others = [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.uint8,
        torch.int64,
    ]
    return draw.choice([torch.float32] * 24 + others)


def step(draw: random.Random) -> None:
    """Run one of the rules on drawn columns.

    Some columns do not fit together, or are the same memory.
    """
    count = draw.randint(0, 4)
    shapes = [drawn_shape(draw) for _ in range(count)]

    def column() -> list[Any]:
        return [
            drawn_tensor(draw, s if draw.random() < 0.97 else drawn_shape(draw), drawn_dtype(draw))
            for s in shapes
        ]

    columns = [column() for _ in range(4)]
    if count and draw.random() < 0.15:
        columns[draw.randrange(4)][draw.randrange(count)] = columns[draw.randrange(4)][
            draw.randrange(count)
        ]
    steps = [float(draw.randint(1, 9)) for _ in range(count - (draw.random() < 0.02))]
    shared = {"lr": 0.1, "weight_decay": draw.choice([0.0, 0.1]), "maximize": False}
    adams = {
        **shared,
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "decoupled_weight_decay": draw.random() < 0.5,
    }
    last = columns[3] if draw.random() < 0.5 else None
    draw.choice(
        [
            lambda: cpu_optimizers.adam_(*columns, steps, **adams),
            lambda: cpu_optimizers.radam_(*columns, steps, **adams),
            lambda: cpu_optimizers.sgd_(
                columns[0], columns[1], last, momentum=0.9, nesterov=draw.random() < 0.5, **shared
            ),
            lambda: cpu_optimizers.rmsprop_(
                *columns[:3], last, alpha=0.9, eps=1e-8, momentum=0.9, **shared
            ),
        ]
    )()


def training(draw: random.Random) -> None:
    """Take a few steps of an optimizer whose gradients come from a closure, in any dtype."""
    kind = draw.choice(
        [fused_cpu.Adam, fused_cpu.AdamW, fused_cpu.SGD, fused_cpu.RMSprop, fused_cpu.RAdam]
    )
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    weights = [
        torch.nn.Parameter(torch.ones(drawn_shape(draw), dtype=draw.choice(dtypes)))
        for _ in range(3)
    ]
    optimizer = kind(weights, lr=0.1, **({"momentum": 0.9} if kind is fused_cpu.SGD else {}))

    def closure() -> float:
        for weight in weights:
            gradient = torch.ones_like(weight)
            sparse = draw.random() < 0.1 and weight.dim()
            weight.grad = (
                gradient.to_sparse()
                if sparse
                else gradient.flatten()[:1].sum().expand(weight.shape)
            )
        return 0.0

    for _ in range(3):
        optimizer.step(closure)


def packing(draw: random.Random) -> None:
    """Call the operators of compression below their checks in Python.

    Their buffers mostly fit.
    """

    def buffer(size: int, dtype: Any, dims: int = 1) -> Any:
        size = size if draw.random() < 0.9 else max(0, size + draw.choice([-16, -1, 1, 300]))
        dtype = dtype if draw.random() < 0.95 else drawn_dtype(draw)
        return drawn_tensor(draw, (size,) if dims == 1 else (draw.randint(0, 3), size), dtype)

    size = draw.choice([0, 1, 5, 255, 256, 257, 1000])
    each = compression.packed_bytes(size, "int8")
    values = drawn_tensor(draw, (size,), torch.float32)
    if draw.random() < 0.5:
        error = buffer(size, torch.float32) if draw.random() < 0.6 else None
        error = values if error is not None and draw.random() < 0.1 else error
        torch.ops.gallery.pack_gradient_(values, error, "int8", buffer(each, torch.uint8))
        return
    packed = buffer(each, torch.uint8, dims=2)
    # Rows with a distance of their own, in memory that may be too small for them.
    if draw.random() < 0.2:
        packed = torch.ones(draw.choice([each, 3 * each + 40]), dtype=torch.uint8)
        apart = draw.choice([0, each, each + 16])
        packed = torch.as_strided(
            packed, (1 + draw.randint(0, 1) * (packed.numel() > each), each), (apart, 1)
        )
    torch.ops.gallery.accumulate_gradient_(values, packed, "int8", 0.5, draw.random() < 0.5)


def normalising(draw: random.Random) -> None:
    """Call batch norm's functions with tensors that mostly fit, below their checks in Python."""
    shape = draw.choice(
        [(2, 3, 4, 5), (1, 16, 1, 1), (3, 17, 9, 1), (2, 2051, 3, 3), (70, 40, 5, 5)]
    )
    dtype = draw.choice([torch.float32, torch.bfloat16])

    def images() -> Any:
        if draw.random() < 0.03:
            return drawn_tensor(draw, draw.choice([shape, (0, 3, 4, 5), (7,)]), drawn_dtype(draw))
        values = torch.randn(shape, dtype=torch.float32).to(dtype)
        values = values.contiguous(memory_format=torch.channels_last)
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    def channels() -> Any:
        size = shape[1] if draw.random() < 0.99 else shape[1] + draw.choice([-1, 1])
        return (
            drawn_tensor(draw, (size,), torch.float32) if draw.random() < 0.1 else torch.rand(size)
        )

    def perhaps(make: Callable[[], Any]) -> Any:
        return make() if draw.random() < 0.5 else None

    function = draw.choice(["statistics", "forward", "sums", "gradient"])
    x, mean, second, sums = images(), channels(), channels(), [channels(), channels()]
    affine = [perhaps(channels), perhaps(channels)]
    if function == "statistics":
        columns = [x, *[None] * 5, mean, second, None, None, *(sums if draw.random() < 0.5 else [])]
    elif function == "forward":
        columns = [x, None, None, None, perhaps(images), images(), mean, second, *affine]
    elif function == "gradient":
        columns = [x, images(), None, None, None, images(), mean, second, *affine, *sums]
    else:
        of_result = [images(), None, images()] if draw.random() < 0.5 else [None] * 3
        more = images() if of_result[0] is not None and draw.random() < 0.5 else None
        columns = [x, images(), more, *of_result, mean, second, *affine, *sums]
    if draw.random() < 0.05:
        columns[draw.randrange(len(columns))] = columns[draw.randrange(len(columns))]
    batch_norm_statistics.call_cpp(
        function, *columns, flag=draw.random() < 0.5, number=0.1, epsilon=1e-5
    )


def pooling(draw: random.Random) -> None:
    """Call max pooling with tensors and windows that mostly fit, below their checks in Python."""
    kernel, stride, padding = (
        [draw.choice(sizes), draw.choice(sizes)] for sizes in ((1, 2, 3), (1, 2, 3), (0, 0, 1))
    )
    sizes = [draw.randint(1, 9), draw.randint(1, 9)]
    pooled = max_pool.pooled_sizes(sizes, kernel, stride, padding, draw.random() < 0.5)
    pooled = [max(1, size + (draw.random() < 0.05) - (draw.random() < 0.05)) for size in pooled]
    both, dtype = (
        [draw.randint(1, 3), draw.choice([1, 16, 19])],
        draw.choice([torch.float32, torch.bfloat16]),
    )

    def images(size: list[int], kind: Any) -> Any:
        if draw.random() < 0.05:
            return drawn_tensor(draw, draw.choice([(*both, *size), (7,)]), drawn_dtype(draw))
        values = torch.zeros(*both, *size).random_(9).to(kind)
        values = values.contiguous(memory_format=torch.channels_last)
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    tensors = [images(sizes, dtype), images(pooled, dtype), images(pooled, torch.uint8)]
    if draw.random() < 0.05:
        tensors[draw.randrange(2)] = tensors[1]
    way = draw.choice(["forward", "backward"])
    max_pool.call_cpp(way, tensors, kernel, stride, padding)


def masking(draw: random.Random) -> None:
    """Draw masks of dropout whose size is no multiple of what the C++ does at a time."""
    size = [draw.choice([0, 1, 2, 63, 64, 65]) for _ in range(draw.randint(0, 3))]
    seeds = torch.randint(2**62, (3,))
    kept = torch.ops.gallery.dropout_mask(seeds, draw.randrange(3), size, draw.random())
    assert kept.shape == torch.Size(size)


def multiplying(draw: random.Random) -> None:
    """Call products of matrices that mostly fit, some wide enough to be packed in groups."""
    if mixed_product.reason_not_available() is not None:
        return
    m, k, n = (
        draw.choice([1, 7, 8, 17]),
        draw.choice([1, 2, 33, 64, 1025]),
        draw.choice([1, 16, 50]),
    )

    def matrix(rows: int, columns: int, dtype: Any) -> Any:
        if draw.random() < 0.05:
            return drawn_tensor(
                draw, draw.choice([(rows, columns), (0, 4), (7,)]), drawn_dtype(draw)
            )
        rows += (draw.random() < 0.03) - (draw.random() < 0.03)
        values = torch.ones(max(1, rows), columns).to(dtype)
        values = values.t().contiguous().t() if draw.random() < 0.5 else values
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    kinds = [draw.choice([torch.bfloat16, torch.float32]) for _ in range(3)]
    tensors = [matrix(*size, kind) for size, kind in zip(((m, k), (k, n)), kinds, strict=False)]
    result = matrix(m, n, kinds[2])
    tensors.append(result.contiguous() if draw.random() < 0.9 and result.numel() else result)
    if draw.random() < 0.5:
        tensors.append(drawn_tensor(draw, (n,), torch.float32))
    if draw.random() < 0.05:
        tensors[2] = tensors[draw.randrange(2)]
    if draw.random() < 0.5:
        mixed_product.multiply(tensors)
    else:
        batch = draw.randint(1, 3)
        tensors = [tensor.unsqueeze(0).repeat_interleave(batch, 0) for tensor in tensors[:3]]
        mixed_product.multiply(tensors, "exact_products")


def losses(draw: random.Random) -> None:
    """Call cross-entropy with tensors that mostly fit, and labels of any kind."""

    rows, classes = draw.randint(1, 4), draw.choice([1, 15, 16, 17, 1023, 1025, 2050])

    def tensor(shape: tuple[int, ...], dtype: Any) -> Any:
        if draw.random() < 0.05:
            return drawn_tensor(draw, draw.choice([shape, (0,), (7, 3)]), drawn_dtype(draw))
        if draw.random() < 0.05:
            shape = (shape[0] + draw.choice([-1, 1]), *shape[1:])
        values = torch.zeros(shape).random_(9).to(dtype)
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    dtype, one = draw.choice([torch.float32, torch.bfloat16]), torch.float32
    labels = tensor((rows,), torch.int64)
    if labels.numel() and labels.dtype is torch.int64 and draw.random() < 0.5:
        labels[0] = draw.choice([-100, -1, classes - 1, classes, 2**40, -(2**63)])
    logits, first, second = (
        tensor((rows, classes), dtype),
        tensor((rows,), one),
        tensor((rows,), one),
    )
    smoothing = draw.choice([0.0, 0.1])
    if draw.random() < 0.5:
        columns = [logits, labels, first, second, tensor((rows,), torch.int32)]
        way = "forward"
    else:
        columns = [logits, labels, first, second, tensor((rows, classes), dtype)]
        way = "backward"
    if draw.random() < 0.05:
        columns[draw.randrange(5)] = columns[draw.randrange(5)]
    cross_entropy.call_cpp(way, smoothing, -100, columns)


def damaged_descriptors(draw: random.Random) -> None:
    """Call entry points with descriptors of real memory whose contents are not true.

    Lengths, shapes and strides are wrong.
    """
    shape, rows, columns = (
        draw.choice([(6,), (2, 3), (300,)]),
        draw.randint(0, 3),
        draw.randint(1, 5),
    )
    tensors = [torch.ones(shape) for _ in range(rows * columns)]
    numbers = list(cpp.described(tensors))
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
    told = cpu_optimizers.CPP.arguments(
        address, length, draw.choice([rows] * 4 + [-1, 0]), columns, 2
    )
    rates = (ctypes.c_float * rows)(*[1.0] * rows)
    place = draw.choice([ctypes.addressof(rates)] * 9 + [None])
    moments = (0.9, 0.99, 0.0, 1e-8, 1.0, 1.0, place, place, rows)
    options: dict[str, Any] = {
        "adam": cpu_optimizers.OPTIONS["adam"](*moments),
        "radam": cpu_optimizers.OPTIONS["radam"](*moments),
        "sgd": cpu_optimizers.OPTIONS["sgd"](0.1, 0.0, 0.9, 1.0, 1),
        "rmsprop": cpu_optimizers.OPTIONS["rmsprop"](0.9, 0.1, 0.0, 1e-8, 0.9, 1.0),
    }
    if draw.random() < 0.7:
        name = draw.choice(list(options))
        source, arguments = cpu_optimizers.CPP, [ctypes.byref(told), ctypes.byref(options[name])]
    else:
        name, source = draw.choice(["pack_int8", "accumulate_int8"]), compression.CPP
        arguments = [ctypes.byref(source.arguments(address, length, 1, 1.0))]
    if draw.random() < 0.02:
        arguments = [None] * len(arguments)  # type: ignore[list-item]
    code = source.function(name)(*arguments)
    if code:
        raise ValueError(f"refused with {code & 0xFF}")
