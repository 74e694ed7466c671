"""Training in a cell of a real kernel that is interrupted or killed leaves nothing behind."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from tiny_task import config

pytestmark = [pytest.mark.slow, pytest.mark.several_cores]


@pytest.fixture
def kernel() -> Iterator[tuple[KernelManager, object]]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    if manager.is_alive():
        manager.shutdown_kernel(now=True)


def start_training(manager: KernelManager, client: object, run_dir: Path) -> list[psutil.Process]:
    """Run a training cell without waiting for it.

    Returns the processes that it started, once it trains.
    """
    values = config("SLEEPING", max_steps=1000, run_dir=str(run_dir))
    client.execute(
        "from gallery_lib import launch\n"
        "from gallery_lib.config import *\n"
        f"launch({values!r}, LaunchConfig(nproc_per_node=2))"
    )
    deadline = time.monotonic() + 90
    while not (run_dir / "steps.jsonl").exists() or not (run_dir / "steps.jsonl").read_text():
        assert time.monotonic() < deadline, "the cell did not start training"
        time.sleep(0.1)
    started = psutil.Process(manager.provisioner.pid).children(recursive=True)
    assert len(started) >= 4  # supervisor, torchrun, two workers
    return started


def wait_until_gone(processes: list[psutil.Process], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"still running: {processes}"
        time.sleep(0.1)


def test_killing_the_kernel_ends_every_process(kernel: tuple, tmp_path: Path) -> None:
    manager, client = kernel
    started = start_training(manager, client, tmp_path / "run")
    os.kill(manager.provisioner.pid, 9)
    wait_until_gone(started)


def test_progress_is_one_output_that_is_updated(kernel: tuple, tmp_path: Path) -> None:
    _, client = kernel
    shown: list[dict] = []
    values = config("SLEEPING", max_steps=6, run_dir=str(tmp_path / "run"))
    code = (
        "from gallery_lib import launch\n"
        "from gallery_lib.config import *\n"
        f"r = launch({values!r}, show_log=False)"
    )
    client.execute_interactive(code, timeout=90, output_hook=shown.append)
    displayed = [m for m in shown if m["msg_type"] == "display_data"]
    updates = [m for m in shown if m["msg_type"] == "update_display_data"]
    assert len(displayed) == 1
    assert updates
    labels = [m["content"]["data"]["text/plain"].partition(":")[0] for m in [*displayed, *updates]]
    assert labels[0] == "imports" and "training" in labels
    assert re.match(r"done in \d+ s", labels[-1])  # the last state is what a saved notebook holds
    identities = {m["content"]["transient"]["display_id"] for m in [*displayed, *updates]}
    assert len(identities) == 1
