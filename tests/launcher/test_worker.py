"""Imports of a training process before it begins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWN = """
import gc, sys
from gallery_lib.launcher import worker
assert "torch" not in sys.modules
worker.preload()
print("torch._dynamo" in sys.modules, "torch._inductor.compile_fx" in sys.modules, \
gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler_opt", [False, True])
def test_preloading_imports_the_compiler_where_the_run_uses_it(compiler_opt: bool) -> None:
    environment = {**os.environ, "GALLERY_COMPILER_OPT": str(int(compiler_opt))}
    shown = subprocess.run(
        [sys.executable, "-c", SHOWN],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert shown.stdout.split() == ["True", str(compiler_opt), "True", "True"]
