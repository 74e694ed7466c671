"""Who may end a supervisor of a run that saves its state when it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE, end_supervised, start_supervised

COMMAND = 'trap "echo heard >> $0" TERM; echo ready >> $0; while sleep 0.05; do :; done'


@contextlib.contextmanager
def supervisor(tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Context: the supervisor of a shell that notes SIGTERM and goes on."""
    process = start_supervised(["bash", "-c", COMMAND, str(tmp_path / "notes")], variables)
    try:
        wait_for(tmp_path, "ready")
        yield process
    finally:
        end_supervised(process)


def wait_for(tmp_path: Path, word: str) -> None:
    deadline = time.monotonic() + 20
    while word not in (tmp_path / "notes").read_text() if (tmp_path / "notes").exists() else True:
        assert time.monotonic() < deadline, f"{word} was not noted in time"
        time.sleep(0.02)


def send_from_another_process(number: signal.Signals, pid: int) -> None:
    subprocess.run(["bash", "-c", f"kill -{int(number)} {pid}"], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_from_a_scheduler_does_not_end_the_supervisor(
    tmp_path: Path, number: signal.Signals
) -> None:
    with supervisor(tmp_path, **{HEARS_NOTICE_VARIABLE: "1"}) as process:
        child = psutil.Process(process.pid).children()[0]
        send_from_another_process(number, process.pid)
        send_from_another_process(signal.SIGTERM, child.pid)  # by its turn the other has arrived
        wait_for(tmp_path, "heard")
        assert process.poll() is None
        began = time.monotonic()
        process.terminate()  # by the process that started it
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
        assert not child.is_running() and time.monotonic() - began < 10


def test_other_supervisors_end_whoever_sends_the_signal(tmp_path: Path) -> None:
    with supervisor(tmp_path) as process:
        send_from_another_process(signal.SIGTERM, process.pid)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_a_command_hears_sigterm_though_its_supervisor_blocks_it(tmp_path: Path) -> None:
    with supervisor(tmp_path, **{HEARS_NOTICE_VARIABLE: "1"}) as process:
        child = psutil.Process(process.pid).children()[0]
        blocked = next(
            int(line.split()[1], 16)
            for line in Path(f"/proc/{child.pid}/status").read_text().splitlines()
            if line.startswith("SigBlk")
        )
        assert not blocked >> (signal.SIGTERM - 1) & 1
        assert os.getpgid(process.pid) == process.pid
