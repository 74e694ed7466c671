"""Calls of the C++ of `kernels/cpu` with drawn tensors, which fit together or do not.

Each function makes tensors that fit; `call` spoils some of them and calls the C++ below its checks
in Python.
"""

from __future__ import annotations

import array
import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gallery_lib.kernels import (
    batch_norm,
    compression,
    cpu_optimizers,
    cross_entropy,
    dropout_mask,  # noqa: F401  registers the operator
    max_pool,
    mixed_product,
)
from gallery_lib.kernels.runtime import cpp
from gallery_lib.optim import fused_cpu

SHAPES = ((), (0,), (1,), (7,), (255,), (256,), (257,), (3, 5), (2, 3, 4, 5), (0, 4), (40000,))
OTHERS = (torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.uint8, torch.int64)
LAYOUTS = ("plain", "turned", "gaps", "expanded", "part", "shrunk", "gone", "shifted")


def drawn_tensor(draw: random.Random, shape: Sequence[int], dtype: Any) -> Any:
    """Return a tensor in one of many layouts, or a broken one.

    Its storage ends where its last element does.
    """
    plain = torch.empty(shape, dtype=torch.float64).uniform_(-100, 100).to(dtype)
    way = draw.choice(LAYOUTS)
    if way == "turned":
        order = tuple(range(len(shape)))[::-1]
        return plain.permute(order).contiguous().permute(order)
    if way == "gaps" and shape:
        return torch.empty(*shape, 2, dtype=dtype).fill_(1)[..., 0]
    if way == "expanded" and shape and plain.numel():
        return plain.flatten()[:1].clone().reshape([1] * len(shape)).expand(tuple(shape))
    if way == "part":
        return torch.ones(plain.numel() + 3, dtype=dtype)[3:].reshape(tuple(shape))
    if way == "shrunk" and plain.numel() > 1:
        plain.untyped_storage().resize_(plain.untyped_storage().nbytes() // 2)
    if way == "gone":
        plain.untyped_storage().resize_(0)
    if way == "shifted" and plain.numel() and not dtype.is_complex:
        memory = bytearray(plain.numel() * plain.element_size() + 1)
        shifted = torch.frombuffer(memory, dtype=dtype, offset=1, count=plain.numel())
        return shifted.reshape(tuple(shape))
    return plain


def spoiled(draw: random.Random, tensor: Any) -> Any:
    """Return the tensor, or one of another layout, shape or dtype, or with too little memory."""
    if tensor is None or draw.random() < 0.9:
        return tensor
    shape, dtype = list(tensor.shape), tensor.dtype
    if shape and draw.random() < 0.3:
        place = draw.randrange(len(shape))
        shape[place] = max(0, shape[place] + draw.choice([-1, 1]))
    if draw.random() < 0.1:
        shape = list(draw.choice(SHAPES))
    if draw.random() < 0.2:
        dtype = draw.choice(OTHERS)
    return drawn_tensor(draw, shape, dtype)


def call(draw: random.Random, function: Callable[..., Any], tensors: Sequence[Any]) -> None:
    tensors = [spoiled(draw, tensor) for tensor in tensors]
    if draw.random() < 0.05:
        tensors[draw.randrange(len(tensors))] = tensors[draw.randrange(len(tensors))]
    function(*tensors)


def perhaps(draw: random.Random, tensor: Any) -> Any:
    return tensor if draw.random() < 0.5 else None


def step(draw: random.Random) -> None:
    """Run one of the rules of the optimizers."""
    shapes = [draw.choice(SHAPES) for _ in range(draw.randint(1, 3))]
    count = len(shapes)
    steps = [float(draw.randint(1, 9)) for _ in range(count - (draw.random() < 0.02))]
    shared = {"lr": 0.1, "weight_decay": draw.choice([0.0, 0.1]), "maximize": False}
    momentum, decoupled = draw.random() < 0.5, draw.random() < 0.5
    adams = {"betas": (0.9, 0.99), "eps": 1e-8, "decoupled_weight_decay": decoupled, **shared}
    rule = draw.choice(["adam", "radam", "sgd", "rmsprop"])

    def run(*tensors: Any) -> None:
        columns: list[Any] = [list(tensors[k * count : (k + 1) * count]) for k in range(4)]
        if rule in ("adam", "radam"):
            getattr(cpu_optimizers, f"{rule}_")(*columns, steps, **adams)
            return
        last = columns[3] if momentum else None
        if rule == "sgd":
            options = {"momentum": 0.9, "nesterov": decoupled, **shared}
            cpu_optimizers.sgd_(*columns[:2], last, **options)
        else:
            options = {"momentum": 0.9, "alpha": 0.9, "eps": 1e-8, **shared}
            cpu_optimizers.rmsprop_(*columns[:3], last, **options)

    call(draw, run, [torch.ones(shape) for _ in range(4) for shape in shapes])


def training(draw: random.Random) -> None:
    """Take a few steps of an optimizer whose gradients come from a closure, in any dtype."""
    name = draw.choice(["Adam", "AdamW", "SGD", "RMSprop", "RAdam"])
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    weights = [
        torch.nn.Parameter(torch.ones(draw.choice(SHAPES), dtype=draw.choice(dtypes)))
        for _ in range(3)
    ]
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(fused_cpu, name)(weights, lr=0.1, **options)

    def closure() -> float:
        for weight in weights:
            gradient = torch.ones_like(weight)
            expanded = gradient.flatten()[:1].sum().expand(weight.shape)
            sparse = draw.random() < 0.1 and weight.dim()
            weight.grad = gradient.to_sparse() if sparse else expanded
        return 0.0

    for _ in range(3):
        optimizer.step(closure)


def packing(draw: random.Random) -> None:
    size = draw.choice([0, 1, 5, 255, 256, 257, 1000])
    each = compression.packed_bytes(size, "int8")
    operators, values = torch.ops.gallery, torch.ones(size)
    if draw.random() < 0.5:
        error, out = perhaps(draw, torch.ones(size)), torch.ones(each, dtype=torch.uint8)
        call(draw, lambda v, e, o: operators.pack_gradient_(v, e, "int8", o), [values, error, out])
        return
    packed = torch.ones(draw.randint(0, 3), each, dtype=torch.uint8)
    # Rows with a distance of their own, in memory that may be too small for them.
    if draw.random() < 0.2:
        memory = torch.ones(draw.choice([each, 3 * each + 40]), dtype=torch.uint8)
        rows = 1 + draw.randint(0, 1) * (memory.numel() > each)
        packed = torch.as_strided(memory, (rows, each), (draw.choice([0, each, each + 16]), 1))
    add = draw.random() < 0.5
    call(
        draw,
        lambda v, p: operators.accumulate_gradient_(v, p, "int8", 0.5, add),
        [values, packed],
    )


def in_channels_last(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def normalising(draw: random.Random) -> None:
    shapes = [(2, 3, 4, 5), (1, 16, 1, 1), (3, 17, 9, 1), (2, 2051, 3, 3), (70, 40, 5, 5)]
    shape, dtype = draw.choice(shapes), draw.choice([torch.float32, torch.bfloat16])
    function = draw.choice(["statistics", "forward", "gradient"])
    x, other, written = (in_channels_last(shape, dtype) for _ in range(3))
    mean, second, *sums = (torch.rand(shape[1]) for _ in range(4))
    affine = [perhaps(draw, torch.rand(shape[1])) for _ in range(2)]
    if function == "statistics":
        running = sums if affine[0] is None else []
        columns = [x, None, None, mean, second, None, None, *running]
    elif function == "forward":
        columns = [x, None, written, mean, second, *affine]
    else:
        columns = [x, other, written, mean, second, *affine, *sums]
    options = {"number": 0.1, "epsilon": 1e-5}
    call(draw, lambda *t: batch_norm.call_cpp(function, *t, **options), columns)


def pooling(draw: random.Random) -> None:
    window = [
        [draw.choice(sizes), draw.choice(sizes)] for sizes in ((1, 2, 3), (1, 2, 3), (0, 0, 1))
    ]
    sizes = [draw.randint(1, 9), draw.randint(1, 9)]
    pooled = max_pool.pooled_sizes(sizes, *window, draw.random() < 0.5)
    pooled = [max(1, size) for size in pooled]
    both = [draw.randint(1, 3), draw.choice([1, 16, 19])]
    dtype = draw.choice([torch.float32, torch.bfloat16])
    images = [in_channels_last([*both, *of], dtype) for of in (sizes, pooled)]
    offsets = in_channels_last([*both, *pooled], torch.uint8)
    way = draw.choice(["forward", "backward"])
    call(draw, lambda *t: max_pool.call_cpp(way, t, *window), [*images, offsets])


def masking(draw: random.Random) -> None:
    """Draw masks of dropout whose size is no multiple of what the C++ does at a time."""
    size = [draw.choice([0, 1, 2, 63, 64, 65]) for _ in range(draw.randint(0, 3))]
    seeds = torch.randint(2**62, (3,))
    kept = torch.ops.gallery.dropout_mask(seeds, draw.randrange(3), size, draw.random())
    assert kept.shape == torch.Size(size)


def multiplying(draw: random.Random) -> None:
    """Multiply matrices, some wide enough to be packed in groups."""
    if mixed_product.reason_not_available() is not None:
        return
    m, k, n = (draw.choice(s) for s in ((1, 7, 8, 17), (1, 2, 33, 64, 1025), (1, 16, 50)))
    kinds = [draw.choice([torch.bfloat16, torch.float32]) for _ in range(3)]
    left, right = torch.ones(m, k, dtype=kinds[0]), torch.ones(k, n, dtype=kinds[1])
    left, right = (t.t().contiguous().t() if draw.random() < 0.5 else t for t in (left, right))
    tensors = [left, right, torch.ones(m, n, dtype=kinds[2])]
    if draw.random() < 0.5:
        tensors += [torch.ones(n)] if draw.random() < 0.5 else []
        call(draw, lambda *t: mixed_product.multiply(t), tensors)
        return
    tensors[2], batch = torch.ones(m, n), draw.randint(1, 3)
    batches = [t.unsqueeze(0).repeat_interleave(batch, 0) for t in tensors]
    call(draw, lambda *t: mixed_product.multiply(t, "exact_products"), batches)


def losses(draw: random.Random) -> None:
    """Call cross-entropy with labels of any kind."""
    rows, classes = draw.randint(1, 4), draw.choice([1, 15, 16, 17, 1023, 1025, 2050])
    dtype = draw.choice([torch.float32, torch.bfloat16])
    labels = torch.randint(0, classes, (rows,))
    if draw.random() < 0.5:
        labels[0] = draw.choice([-100, -1, classes - 1, classes, 2**40, -(2**63)])
    columns = [torch.ones(rows, classes, dtype=dtype), labels, torch.ones(rows), torch.ones(rows)]
    smoothing, way = draw.choice([0.0, 0.1]), draw.choice(["forward", "backward"])
    columns += [torch.ones(rows, classes, dtype=dtype)] if way == "backward" else []
    call(draw, lambda *t: cross_entropy.call_cpp(way, smoothing, -100, t), columns)


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
    wrong = [-1, 0, 1, 2, 3, 64, 65, 2**31, 2**62, -(2**63)]
    for _ in range(draw.randint(0, 3) if len(numbers) > fixed else 0):
        numbers[draw.randrange(fixed, len(numbers))] = draw.choice(wrong)
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
