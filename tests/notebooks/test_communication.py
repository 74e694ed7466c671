"""The notebook on communication: its parameters, and a machine that cannot have a lab."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from executed_notebook import execute
from refusal import refused

from gallery_lib.notebooks.cells import communication

_WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
LIMITED = ["unshare", "--user", "--map-root-user", "sh", "-c", _WITHOUT_NAMESPACES, "sh"]
"""Words before a command that is to find a kernel which makes no network namespace."""


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("host", 3, ["`host`", "`hosts`"]),
        ("hosts", 1, ["hosts=1", "2 and 8"]),
        ("rounds", "many", ["'many'", "whole number"]),
        ("rate", "fast", ["'fast'", "100mbit"]),
        ("rate", 200, ["rate=200", "text"]),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    name: str, value: object, shown: list[str]
) -> None:
    with refused(name, *shown):
        communication.settings({name: value})


@pytest.fixture
def limited_kernel(kernel: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return a kernel `gallery` on a machine that makes no network namespaces."""
    if (tried := subprocess.run([*LIMITED, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(
            f"the limit of namespaces cannot be set here ({tried.stderr.strip()}): run where "
            "user namespaces are allowed"
        )
    installed = next(Path(kernel["JUPYTER_PATH"]).rglob("kernel.json"))
    description = json.loads(installed.read_text())
    target = tmp_path / "jupyter" / "kernels" / "gallery" / "kernel.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps({**description, "argv": [*LIMITED, *description["argv"]]}))
    return {**kernel, "JUPYTER_PATH": str(tmp_path / "jupyter")}


@pytest.mark.slow
@pytest.mark.several_cores
def test_without_a_lab_the_notebook_says_not_measured_and_goes_on(
    checkout: Path, tmp_path: Path, limited_kernel: dict[str, str]
) -> None:
    executed = execute(
        checkout / "notebooks" / "communication.ipynb",
        tmp_path / "executed",
        {"epochs": 1},
        limited_kernel,
    )
    text, figures = executed.shown()
    assert text.count("**Not measured**: the kernel lets this user make no network namespaces") == 1
    assert not figures
    assert "| int8 | 0." in text
