"""Cells of a real kernel: progress is one output, a killed kernel ends all, commands are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import run_kernel, start_new_kernel
from tiny_task import config
from worker_processes import wait_until

from gallery_lib.cli.prepare import kernel_command

CODE = "from gallery_lib import launch\nfrom gallery_lib.config import *\nlaunch({!r}, {})"


@pytest.mark.slow
@pytest.mark.several_cores
def test_progress_is_one_output_and_killing_the_kernel_ends_every_process(tmp_path: Path) -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    kernel, shown = psutil.Process(manager.provisioner.pid), []  # type: ignore[attr-defined]
    short = config("SLEEPING", max_steps=6, run_dir=str(tmp_path / "short"))
    client.execute_interactive(
        CODE.format(short, "show_log=False"), timeout=90, output_hook=shown.append
    )
    kinds = ("display_data", "update_display_data")
    states: list[Any] = [message for message in shown if message["msg_type"] in kinds]
    assert [message["msg_type"] for message in states].count("display_data") == 1
    labels = [m["content"]["data"]["text/plain"].partition(":")[0] for m in states]
    assert labels[0] == "imports" and "training" in labels
    assert re.match(r"done in \d+ s", labels[-1])  # the last state is what a saved notebook holds
    assert len({m["content"]["transient"]["display_id"] for m in states}) == 1

    values = config("SLEEPING", max_steps=1000, run_dir=str(tmp_path / "run"))
    client.execute(CODE.format(values, "LaunchConfig(nproc_per_node=2)"))
    steps = tmp_path / "run" / "steps.jsonl"
    wait_until(lambda: steps.exists() and steps.read_text(), 90)
    started = kernel.children(recursive=True)
    assert len(started) >= 3  # supervisor, two workers
    os.kill(kernel.pid, 9)
    wait_until(lambda: not any(map(_is_alive, started)), 10)
    client.stop_channels()


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


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
    shown: list[Any] = []
    cell = (
        "!python -c 'import sys; print(sys.prefix)'\n"
        "!python ../launch_single_task.py --version\n"
        "!gallery --version"
    )
    with run_kernel(kernel_name="gallery", cwd=str(checkout / "notebooks")) as client:
        client.execute_interactive(cell, timeout=120, output_hook=shown.append)
    printed = "".join(message["content"].get("text", "") for message in shown)
    prefix, *versions = printed.split()
    assert Path(prefix).resolve() == Path(sys.prefix).resolve()
    assert versions.count("gallery_lib") == 2
