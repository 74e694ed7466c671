"""Print what the C++ of `kernels/cpu` computes, as JSON: a digest of the bits of each result.

    python tests/processors/results_of_cpp.py --built-for=-march=x86-64-v3

Left out is `mixed_product.cpp`, which is for processors with AVX512-BF16 alone. Inputs are drawn as
integers, so that they have the same bits on every processor. With `--built-for` the C++ is built
for another processor than this one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator

import torch
from torch import Tensor

from gallery_lib.kernels import (  # noqa: F401  some only register operators
    batch_norm,
    compression,
    cpu_optimizers,
    cross_entropy,
    dropout_mask,
    max_pool,
)
from gallery_lib.kernels.compression import packed_bytes
from gallery_lib.kernels.runtime import cpp, operators

SIZES = 1, 15, 16, 17, 4099
Results = Iterator[tuple[str, Tensor]]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return values of many magnitudes, some of them 0, infinite or subnormal."""
    generator = torch.Generator().manual_seed(seed)
    digits = torch.randint(-(2**20), 2**20, shape, generator=generator).double()
    exponents = torch.randint(-24, -16, shape, generator=generator)
    return torch.ldexp(digits, exponents).to(dtype)


def optimizers() -> Results:
    rates = {"lr": 0.03, "weight_decay": 0.1, "maximize": False}
    adam = {"betas": (0.9, 0.99), "eps": 1e-8, **rates}
    for decoupled in (False, True):
        for step in (1, 7):
            for name in ("adam_", "radam_"):
                rows = [[drawn(size, seed=seed) for size in SIZES] for seed in range(4)]
                for squares in rows[3]:
                    squares.abs_()
                function = getattr(cpu_optimizers, name)
                function(*rows, [step] * len(SIZES), decoupled_weight_decay=decoupled, **adam)
                for column in (0, 2, 3):
                    yield (
                        f"{name} {decoupled} {step} {column}",
                        torch.cat(rows[column]),
                    )
    for momentum in (0.0, 0.9):
        for nesterov in (False, True):
            rows = [[drawn(size, seed=seed) for size in SIZES] for seed in range(3)]
            buffers = rows[2] if momentum else None
            cpu_optimizers.sgd_(*rows[:2], buffers, momentum=momentum, nesterov=nesterov, **rates)
            yield f"sgd_ {momentum} {nesterov}", torch.cat([*rows[0], *rows[2]])
        rows = [[drawn(size, seed=seed) for size in SIZES] for seed in range(4)]
        for squares in rows[2]:
            squares.abs_()
        buffers = rows[3] if momentum else None
        cpu_optimizers.rmsprop_(
            *rows[:3], buffers, momentum=momentum, alpha=0.99, eps=1e-8, **rates
        )
        yield f"rmsprop_ {momentum}", torch.cat([*rows[0], *rows[2], *rows[3]])


def images(dtype: torch.dtype) -> Results:
    for channels in (3, 16, 37):
        shape = 2, channels, 9, 7
        batch, gradient = (
            drawn(*shape, dtype=dtype, seed=seed).contiguous(memory_format=torch.channels_last)
            for seed in range(2)
        )
        mean, variance = torch.zeros(channels), torch.ones(channels)
        weight, bias = drawn(channels, seed=3), drawn(channels, seed=4)
        inputs = [tensor.clone().requires_grad_() for tensor in (batch, weight, bias)]
        result = batch_norm.batch_norm_relu(inputs[0], mean, variance, *inputs[1:])
        gradients = torch.autograd.grad(result, inputs, gradient)
        name = f"{dtype} {channels}"
        for part, tensor in enumerate((result, mean, variance, *gradients)):
            yield f"batch_norm_relu {name} {part}", tensor.detach()
        pooled, offsets = torch.ops.gallery.max_pool(batch, [3, 2], [2, 1], [1, 0], True)
        yield f"max_pool {name}", pooled
        yield f"max_pool's places {name}", offsets
        leaf = batch.clone().requires_grad_()
        pooled, _ = torch.ops.gallery.max_pool(leaf, [3, 3], [2, 2], [1, 1], False)
        of_pooled = drawn(*pooled.shape, dtype=dtype, seed=5)
        yield f"max_pool's gradient {name}", torch.autograd.grad(pooled, leaf, of_pooled)[0]


def losses(dtype: torch.dtype) -> Results:
    for classes in (5, 16, 1025, 4099):
        logits = drawn(6, classes, dtype=dtype).requires_grad_()
        labels = torch.arange(6) * 7 % classes
        rows = cross_entropy.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
        (gradient,) = torch.autograd.grad(rows.sum(), logits)
        yield f"cross_entropy {dtype} {classes}", rows.detach()
        yield f"cross_entropy's gradient {dtype} {classes}", gradient


def packed() -> Results:
    for size in (1, 1023, 5000):
        gradient, error = drawn(size, seed=1), drawn(size, seed=2)
        sent = torch.zeros(packed_bytes(size), dtype=torch.uint8)  # gaps are not written
        compression.pack(gradient, error, sent)
        total = drawn(size, seed=3)
        compression.accumulate_(total, sent[None], factor=0.5)
        for name, tensor in (("sent", sent), ("error", error), ("sum", total)):
            yield f"int8 {name} {size}", tensor


def masks() -> Results:
    for seed in (0, -3, 2**62 + 1):
        seeds = torch.tensor([0, seed])
        yield f"dropout_mask {seed}", torch.ops.gallery.dropout_mask(seeds, 1, [3, 1001], 0.3)


def results() -> dict[str, str]:
    """Return a digest of each result's bits, by name."""
    before, found = operators.counts(), {}
    parts = [optimizers(), packed(), masks()]
    for dtype in (torch.float32, torch.bfloat16):
        parts += [images(dtype), losses(dtype)]
    for name, tensor in (result for part in parts for result in part):
        dense = tensor.contiguous().view(torch.uint8)
        found[name] = hashlib.sha256(dense.numpy().tobytes()).hexdigest()[:16]
    in_plain_torch = {
        name for name, how in operators.counts() - before if how == operators.PLAIN_TORCH
    }
    if in_plain_torch:
        raise SystemExit(f"not computed in C++: {', '.join(sorted(in_plain_torch))}")
    return found


def main() -> None:
    """Print the digests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--built-for", help="the compiler's option that names the processor")
    if option := parser.parse_args().built_for:
        cpp._for_this_processor = lambda: [option]
        if not cpu_optimizers.available():  # a warning says why
            parser.error(f"--built-for: nothing can be built for {option}")
    torch.set_num_threads(2)
    print(json.dumps(results()))


if __name__ == "__main__":
    main()
