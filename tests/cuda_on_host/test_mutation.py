"""mutation.py: it has mutations of every kernel, and tests notice a broken kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cuda_on_host import mutation

from gallery_lib.kernels.runtime.nvrtc import SOURCES


def test_every_kernel_is_broken_in_three_ways():
    kernels = {
        name
        for path in SOURCES.glob("*.cu")
        for name in re.findall(r"\) (\w+)\(const __grid_constant__", path.read_text())
    }
    counts = Counter(each.kernel for each in mutation.MUTATIONS)
    assert kernels <= set(counts)
    assert set(counts.values()) == {3}


@pytest.mark.thorough
@pytest.mark.slow
def test_the_tests_notice_what_is_broken():
    """One kernel here; all of them take minutes."""
    command = [sys.executable, str(Path(mutation.__file__)), "--only", "finish_norm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 mutations noticed" in done.stdout
