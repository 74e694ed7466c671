"""Every public call has an example in its docstring, and the example runs as it is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = [
    ("gallery_lib.acceleration.one_call", "accelerate", pytest.mark.slow),  # compiles
    ("gallery_lib.checkpoint.script", "Checkpoint", None),
    ("gallery_lib.cluster.lab", "Lab", pytest.mark.cluster),
    ("gallery_lib.comm.accelerate_ddp", "accelerate_ddp", None),
    ("gallery_lib.comm.accelerate_ddp", "step_in_backward", None),
    ("gallery_lib.comm.auto", None, None),
    ("gallery_lib.launcher.job", "launch", pytest.mark.slow),
    ("gallery_lib.measure.comparison.compare", "compare_backend", pytest.mark.slow),
    ("gallery_lib.optim", "OptimizerSpec", None),
    ("gallery_lib.optim.adoption", "accelerate_optimizer", None),
    ("gallery_lib.optim.grad_scaler", "GradScaler", None),
    ("gallery_lib.optim.schedules", "SkipAware", None),
    ("gallery_lib.optim.sync_free", "AdamW", None),
]
"""Module and name of each public call, without a name for the module itself; its mark."""


SCRIPT = Path(__file__).with_name("docstring_example.py")


def run_example(
    package_folder: Path, module: str, name: str | None, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run the example of a call in a process of its own; its package is in `package_folder`."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), module, *([name] if name else [])],
        capture_output=True,
        text=True,
        timeout=560,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(package_folder), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(module, name, id=name or module, marks=mark or ())
        for module, name, mark in EXAMPLES
    ],
)
def test_the_example_of_a_public_call_runs_as_it_is_written(
    checkout: Path, tmp_path: Path, module: str, name: str | None
) -> None:
    example = run_example(checkout, module, name, tmp_path)
    assert example.returncode == 0, f"{example.stdout}\n{example.stderr}"


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("Do nothing.", "gallery_demo.call has no example"),
        ("Do nothing.\n\n    Example:\n        call()\n", "gallery_demo.call has no example"),
        ("Do nothing.\n\n    Example:\n        >>> missing\n", "NameError"),
        ("Do nothing.\n\n    Example:\n        >>> 1 + 1\n        3\n", "Expected:\n    3"),
        ("Do nothing.\n\n    Example:\n        >>> 1 + 1\n        2\n", ""),
    ],
    ids=["without a section", "without a prompt", "that raises", "that differs", "that runs"],
)
def test_a_call_without_an_example_or_with_one_that_fails_is_named(
    tmp_path: Path, docstring: str, message: str
) -> None:
    """The package under test is one that the test writes."""
    (tmp_path / "gallery_demo.py").write_text(f'def call():\n    """{docstring}    """\n')
    example = run_example(tmp_path, "gallery_demo", "call", tmp_path)
    assert (example.returncode == 0) is (message == ""), example.stderr
    assert message in example.stdout + example.stderr
