"""The C++ for the CPU computes the same bits, whatever processor it is built for."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.system.processes import search_path

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.skipif(
        platform.machine().lower() not in ("x86_64", "amd64"),
        reason="needs an x86 processor, which runs what is built for older ones too",
    ),
]
SCRIPT = Path(__file__).with_name("results_of_cpp.py")


def results(built_for: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--built-for={built_for}"],
        env=os.environ | {"PYTHONPATH": search_path()},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout)
    return printed


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    found = results("-march=native")
    assert len(found) > 100 and len(set(found.values())) > 100
    return found


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64"], ids=["AVX2", "SSE2"])
def test_an_older_processor_computes_the_same_bits(level: str, here: dict[str, str]) -> None:
    assert results(f"-march={level}") == here


def test_another_order_of_sums_has_other_bits(here: dict[str, str]) -> None:
    assert results("-ffast-math") != here
