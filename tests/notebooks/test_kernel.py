"""Training in a cell of a real kernel: one output says how it goes, and a killed kernel ends it."""

import os
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from tiny_task import config

CODE = "from gallery_lib import launch\nfrom gallery_lib.config import *\nlaunch({!r}, {})"


@pytest.mark.slow
@pytest.mark.several_cores
def test_progress_is_one_output_and_killing_the_kernel_ends_every_process(tmp_path: Path) -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    kernel, shown = psutil.Process(manager.provisioner.pid), []  # type: ignore[attr-defined]
    short = config("SLEEPING", max_steps=6, run_dir=str(tmp_path / "short"))
    code = CODE.format(short, "show_log=False")
    client.execute_interactive(code, timeout=90, output_hook=shown.append)
    displayed: list[Any] = [m for m in shown if m["msg_type"] == "display_data"]
    updates = [m for m in shown if m["msg_type"] == "update_display_data"]
    assert len(displayed) == 1
    assert updates
    labels = [m["content"]["data"]["text/plain"].partition(":")[0] for m in [*displayed, *updates]]
    assert labels[0] == "imports" and "training" in labels
    assert re.match(r"done in \d+ s", labels[-1])  # the last state is what a saved notebook holds
    identities = {m["content"]["transient"]["display_id"] for m in [*displayed, *updates]}
    assert len(identities) == 1

    values = config("SLEEPING", max_steps=1000, run_dir=str(tmp_path / "run"))
    client.execute(CODE.format(values, "LaunchConfig(nproc_per_node=2)"))
    steps, deadline = tmp_path / "run" / "steps.jsonl", time.monotonic() + 90
    while not (steps.exists() and steps.read_text()):
        assert time.monotonic() < deadline, "the cell did not start training"
        time.sleep(0.1)
    started = kernel.children(recursive=True)
    assert len(started) >= 3  # supervisor, two workers
    os.kill(kernel.pid, 9)
    deadline = time.monotonic() + 10
    while left := [p for p in started if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)
    client.stop_channels()
