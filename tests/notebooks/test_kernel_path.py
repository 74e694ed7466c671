"""A cell of the kernel that prepare.sh registers finds the commands of the kernel's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from gallery_lib.cli.prepare import kernel_command


@pytest.mark.slow
def test_python_in_a_shell_line_is_the_notebooks_own(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = kernel_command(Path(sys.executable))
    at = command.index("--sys-prefix")
    command[at : at + 1] = ["--prefix", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    # The PATH of a JupyterLab that was started without an active environment.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    manager, client = start_new_kernel(kernel_name="gallery", cwd=str(checkout / "notebooks"))
    printed: list[str] = []
    try:
        cell = (
            "!python -c 'import sys; print(sys.prefix)'\n"
            "!python ../launch_single_task.py --version\n"
            "!gallery --version"
        )
        client.execute_interactive(
            cell,
            timeout=120,
            output_hook=lambda message: printed.append(message["content"].get("text", "")),
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    prefix, *versions = "".join(printed).split()
    assert Path(prefix).resolve() == Path(sys.prefix).resolve()
    assert versions.count("gallery_lib") == 2
