"""The C++ for the CPU computes the same bits, whatever processor it is built for.

    python tests/processors/test_same_bits.py --built-for=-march=x86-64-v3

As a program it prints what the C++ of `kernels/cpu` computes, as JSON: a digest of the bits of each
result. Compare outputs of one machine alone: torch, which draws the arguments, may draw others on
another. Left out are `mixed_product.cpp`, which is for processors with AVX512-BF16 alone, and
`winograd.cpp`, which fuses multiplications and additions where the processor can.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# As a program it finds neither folder.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cuda_on_host import draw
from kernels import calls
from torch import Tensor

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.runtime import cpp, operators

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine().lower() not in ("x86_64", "amd64"),
        reason="needs an x86 processor, which runs what is built for older ones too",
    ),
]
SIZES = 1, 15, 16, 17, 4099


def columns(count: int) -> list[list[Tensor]]:
    """Return columns of tensors; from the third on none of their values are negative."""
    result = [
        [draw.values(size, torch.float32, seed, exponent=-4.0, spread=6.0) for size in SIZES]
        for seed in range(count)
    ]
    return [*result[:2], *([tensor.abs() for tensor in column] for column in result[2:])]


def optimizers() -> Iterator[tuple[str, list[Tensor]]]:
    rates = {"lr": 0.03, "weight_decay": 0.1, "maximize": False}
    adam = {"betas": (0.9, 0.99), "eps": 1e-8, **rates}
    for name, decoupled, step in itertools.product(("adam_", "radam_"), (False, True), (1, 7)):
        rows = columns(4)
        function = getattr(cpu_optimizers, name)
        function(*rows, [step] * len(SIZES), decoupled_weight_decay=decoupled, **adam)
        yield f"{name} {decoupled} {step}", list(map(torch.cat, rows))
    for momentum, nesterov in itertools.product((0.0, 0.9), (False, True)):
        rows = columns(3)
        buffers = rows[2] if momentum else None
        cpu_optimizers.sgd_(*rows[:2], buffers, momentum=momentum, nesterov=nesterov, **rates)
        yield f"sgd_ {momentum} {nesterov}", list(map(torch.cat, rows))
    for momentum in (0.0, 0.9):
        rows = columns(4)
        buffers = rows[3] if momentum else None
        options = {"momentum": momentum, "alpha": 0.99, "eps": 1e-8, **rates}
        cpu_optimizers.rmsprop_(*rows[:3], buffers, **options)
        yield f"rmsprop_ {momentum}", list(map(torch.cat, rows))


def digests() -> dict[str, str]:
    """Return a digest of each result's bits, by name."""
    before, found = operators.counts(), {}
    families = [one for one in calls.IN_CPP if one is not calls.convolutions]
    named = itertools.chain(optimizers(), *map(calls.results, families))
    for place, (name, tensors) in enumerate(named):
        for part, tensor in enumerate(tensors):
            dense = tensor.contiguous().reshape(-1).view(torch.uint8)
            digest = hashlib.sha256(dense.numpy().tobytes()).hexdigest()[:16]
            found[f"{place} {name} {part}"] = digest
    in_plain_torch = [n for n, how in operators.counts() - before if how == operators.PLAIN_TORCH]
    if in_plain_torch:
        raise SystemExit(f"not computed in C++: {', '.join(sorted(in_plain_torch))}")
    return found


def results(built_for: str) -> dict[str, str]:
    command = [sys.executable, __file__, f"--built-for={built_for}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout)
    return printed


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    found = results("-march=native")
    assert len(found) > 200 and len(set(found.values())) > 100
    return found


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64"], ids=["AVX2", "SSE2"])
def test_an_older_processor_computes_the_same_bits(level: str, here: dict[str, str]) -> None:
    assert results(f"-march={level}") == here


def test_another_order_of_sums_has_other_bits(here: dict[str, str]) -> None:
    assert results("-ffast-math") != here


def main() -> None:
    """Print the digests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--built-for", help="build for it: the compiler's option of a processor")
    if option := parser.parse_args().built_for:
        cpp._for_this_processor = lambda: [option]
        if not cpu_optimizers.available():  # a warning says why
            parser.error(f"--built-for: nothing can be built for {option}")
    torch.set_num_threads(2)
    print(json.dumps(digests()))


if __name__ == "__main__":
    main()
