"""All tests marked `gpu` pass on the fake device, in both extreme orders of work."""

from __future__ import annotations

import pytest
from fake_gpu.running import ROOT, pytest_on_device


@pytest.mark.slow
@pytest.mark.parametrize("order", ["late", pytest.param("early", marks=pytest.mark.thorough)])
def test_the_tests_for_a_gpu_pass(order):
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text() and path.parent.name != "fake_gpu"
    ]
    assert files
    pytest_on_device("-m", "gpu", *files, order=order)
