"""The address sanitizer finds no wrong access in the C++ for the CPU, whatever tensors it gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kernels.under_address_sanitizer import libasan

from gallery_lib.kernels import mixed_product

SCRIPT = Path(__file__).with_name("under_address_sanitizer.py")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(libasan() is None, reason="needs g++ with libasan"),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def test_a_planted_access_after_the_end_is_noticed() -> None:
    done = run("--planted")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "after_the_end" in done.stderr


@pytest.mark.parametrize("seed", [0, 1])
def test_drawn_tensors(seed: int) -> None:
    done = run("--cases", "4800", "--seed", str(seed))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "AddressSanitizer" not in done.stderr
    outcomes = dict(reversed(line.split(maxsplit=1)) for line in done.stdout.splitlines())
    for way in (
        "step",
        "packing",
        "normalising",
        "pooling",
        "losses",
        "damaged_descriptors",
        *(["multiplying"] if mixed_product.reason_not_available() is None else []),
    ):  # both kinds of cases were drawn
        refused = sum(int(times) for name, times in outcomes.items() if name.startswith(f"{way}:"))
        assert int(outcomes[f"{way} done"]) > 20 and refused > 20, outcomes
    assert int(outcomes["masking done"]) > 100
    assert int(outcomes["training done"]) > 100
