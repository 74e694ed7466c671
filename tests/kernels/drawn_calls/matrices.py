"""Operators for matrices: masks of dropout, products, and cross-entropy."""

from __future__ import annotations

import random
from typing import Any

from kernels.drawn_calls.tensors import drawn_dtype, drawn_tensor


def masking(draw: random.Random) -> None:
    """Draw masks of dropout whose size is no multiple of what the C++ does at a time."""
    import torch

    import gallery_lib.kernels.dropout_mask  # noqa: F401  registers the operator

    size = [draw.choice([0, 1, 2, 63, 64, 65]) for _ in range(draw.randint(0, 3))]
    seeds = torch.randint(2**62, (3,))
    kept = torch.ops.gallery.dropout_mask(seeds, draw.randrange(3), size, draw.random())
    assert kept.shape == torch.Size(size)


def multiplying(draw: random.Random) -> None:
    """Call products of matrices that mostly fit, some wide enough to be packed in groups."""
    import torch

    from gallery_lib.kernels import mixed_product

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
        mixed_product.multiply_batches(tensors)


def losses(draw: random.Random) -> None:
    """Call cross-entropy with tensors that mostly fit, and labels of any kind."""
    import torch

    from gallery_lib.kernels import cross_entropy_cpp

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
        call = cross_entropy_cpp.forward
    else:
        columns = [logits, labels, first, second, tensor((rows, classes), dtype)]
        call = cross_entropy_cpp.backward
    if draw.random() < 0.05:
        columns[draw.randrange(5)] = columns[draw.randrange(5)]
    call(smoothing, -100, columns)
