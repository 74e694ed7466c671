"""A signal ends the command that runs, wherever the exception of its handler is swallowed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.console.exit_code import exit_code_of

COMMAND = """
import os, subprocess, sys, time
from gallery_lib.console.exit_code import exit_code_of
{definitions}
def body():
    print("at work", flush=True)
    while True:
        {statement}
        time.sleep(0.25)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""
AT_FORK = """
def slow():
    time.sleep(0.5)
os.register_at_fork(after_in_parent=slow)
"""
DESTRUCTOR = """
class Slow:
    def __del__(self):
        time.sleep(0.5)
"""
IMPORT = """
def swallowed():
    try:
        time.sleep(30)
    except BaseException:
        pass  # as an extension does while it is being imported
    time.sleep(0.5)
"""
STARTED = """
def started():
    process = subprocess.Popen(["sleep", "0.01"], preexec_fn=lambda: time.sleep(0.2))
    process.wait()
"""
PLACES = {
    "a computation": ("", "sum(range(1000))"),
    "a callback of a fork": (AT_FORK, "os.waitpid(os.fork() or os._exit(0), 0)"),
    "a destructor": (DESTRUCTOR, "Slow()"),
    "an import": (IMPORT, "swallowed()"),
    "the start of a process": (STARTED, "started()"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_is_heeded_in(place: str, sent: signal.Signals, code: int) -> None:
    definitions, statement = PLACES[place]
    source = COMMAND.format(definitions=definitions, statement=statement)
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    process.send_signal(sent)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (code, "", "stopped\n")


CLEANS_UP = """
import sys, time
from gallery_lib.console.exit_code import exit_code_of

def body():
    try:
        print("at work", flush=True)
        time.sleep(30)
    finally:
        try:
            time.sleep(0.4)  # several times as long as the timer takes
            raise OSError("a file is gone")
        except OSError:
            time.sleep(0.4)
        print("cleaned up", flush=True)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


def test_cleanup_is_not_interrupted() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLEANS_UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (143, "cleaned up\n", "stopped\n")


def test_a_timer_of_the_process_is_left_alone_and_comes_back() -> None:
    def body() -> None:
        assert signal.getsignal(signal.SIGALRM) is alarm
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 100
        signal.raise_signal(signal.SIGINT)

    def alarm(*_: object) -> None:
        raise AssertionError("too early")

    handler = signal.signal(signal.SIGALRM, alarm)
    timer = signal.setitimer(signal.ITIMER_REAL, 200)
    try:
        assert exit_code_of(body, error_prefix="error", interrupted="stopped") == 130
        assert signal.getsignal(signal.SIGALRM) is alarm
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


TORCH = """
import time
print("importing", flush=True)
began = time.monotonic()
while time.monotonic() - began < 1.0:
    time.sleep(0.01)
print("imported", flush=True)
"""
IMPORTS_TORCH = """
import sys, time
from gallery_lib.console.exit_code import exit_code_of

def body():
    import torch
    time.sleep(30)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_raised_into_the_import_of_torch(
    tmp_path: Path, checkout: Path, sent: signal.Signals, code: int
) -> None:
    """Its C++ calls Python where an exception ends the process with SIGABRT."""
    (tmp_path / "torch.py").write_text(TORCH)
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTS_TORCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{checkout}"},
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(sent)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (code, "imported\n", "stopped\n")
