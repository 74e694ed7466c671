"""A Jupyter kernel called `gallery` that is this interpreter, wherever the tests run."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables that make the kernel known."""
    folder = tmp_path_factory.mktemp("jupyter")
    command = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(folder), "--name", "gallery"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return {"JUPYTER_PATH": str(folder / "share" / "jupyter"), "HF_HUB_OFFLINE": "1"}
