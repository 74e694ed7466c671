"""Supervisors, folders for sockets, and what lies around a command: no home, closed streams."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch
from refusal import refused
from worker_processes import wait_until

from gallery_lib.compiler.backend import check_compiler
from gallery_lib.config import Compiler
from gallery_lib.system import processes
from gallery_lib.system.files import PrivateFolder
from gallery_lib.system.processes import (
    HEARS_NOTICE_VARIABLE,
    PYTHON,
    end_supervised,
    start_supervised,
)

COMMAND = """
import signal, sys, time
note = lambda word: print(word, file=open(sys.argv[1], "a"), flush=True)
signal.signal(signal.SIGTERM, lambda *_: note("heard"))
note("ready")
while True: time.sleep(0.05)
"""


@contextlib.contextmanager
def supervisor(tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Context: the supervisor of a command that notes SIGTERM and goes on."""
    notes = tmp_path / "notes"
    process = start_supervised([*PYTHON, "-c", COMMAND, str(notes)], variables)
    try:
        wait_until(notes.exists)
        yield process
    finally:
        end_supervised(process)


def send_from_another_process(number: signal.Signals, pid: int) -> None:
    subprocess.run(["kill", f"-{int(number)}", str(pid)], check=True)


def test_a_killed_process_ends_from_the_signal_on() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not processes.ends(process.pid)
        process.kill()
        assert processes.ends(process.pid)  # it may still be waiting for a core
    assert processes.ends(process.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_from_a_scheduler_reaches_the_command_and_does_not_end_the_supervisor(
    tmp_path: Path, number: signal.Signals
) -> None:
    with supervisor(tmp_path, **{HEARS_NOTICE_VARIABLE: "1"}) as process:
        child = psutil.Process(process.pid).children()[0]
        send_from_another_process(number, process.pid)
        send_from_another_process(signal.SIGTERM, child.pid)  # by its turn the other has arrived
        wait_until(lambda: "heard" in (tmp_path / "notes").read_text())
        assert process.poll() is None
        began = time.monotonic()
        end_supervised(process)
        assert process.returncode == 128 + signal.SIGTERM
        assert not child.is_running() and time.monotonic() - began < 10


def test_other_supervisors_end_whoever_sends_the_signal(tmp_path: Path) -> None:
    with supervisor(tmp_path) as process:
        send_from_another_process(signal.SIGTERM, process.pid)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_processes_are_not_forked_where_cudas_driver_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock(side_effect=OSError("cannot open it")))
    assert processes.can_fork()
    monkeypatch.setattr(ctypes, "CDLL", mock.Mock())
    assert not processes.can_fork()


def test_the_folder_of_sockets_is_private_and_short_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 100)))
    folder = PrivateFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(os.fsencode(folder.path)) <= 103 - len("/listener-xxxxxxxx")
    folder.close()
    folder.close()
    assert not folder.path.exists()


NAMES = ("queue", "random", "types", "typing", "logging", "json", "signal", "struct", "site")


@pytest.mark.slow
@pytest.mark.several_cores
def test_a_run_in_a_folder_with_modules_of_such_names_trains(
    tmp_path: Path, checkout: Path
) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the reader')\n")
    task = checkout / "tests" / "helpers" / "tiny_task.py"
    words = [f"--model={task}:TASK", "--max_steps=2", "--no-evaluate", "--threads=1"]
    words += ["--nproc_per_node=2", "--workers=1", "--compiler-opt"]
    line = [sys.executable, str(checkout / "launch_single_task.py"), *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with refused("CXX", "CXX=/nonexistent/g++ names none that is there"):
        check_compiler(Compiler(), torch.device("cpu"))
