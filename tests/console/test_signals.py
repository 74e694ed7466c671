"""A signal ends the command that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

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
STARTED = """
def started():
    process = subprocess.Popen(["sleep", "0.01"], preexec_fn=lambda: time.sleep(0.2))
    process.wait()
"""
PLACES = {
    "a computation": ("", "sum(range(1000))"),
    "a wait, with a file to tidy up": (
        "import tempfile",
        "with tempfile.TemporaryFile(): time.sleep(60)",
    ),
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
            time.sleep(0.4)
            raise OSError("a file is gone")
        except OSError:
            time.sleep(0.4)
        print("cleaned up", flush=True)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


def terminated(code: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of Python code that gets SIGTERM once it is at work."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    return process.returncode, output, errors


def test_cleanup_is_not_interrupted() -> None:
    assert terminated(CLEANS_UP) == (143, "cleaned up\n", "stopped\n")


TORCH = """
import time
print("importing", flush=True)
began = time.monotonic()
while time.monotonic() - began < 1.0:
    time.sleep(0.01)
print("imported", flush=True)
"""
IMPORTS_TORCH = """
import subprocess, sys, time
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.signals import importing

def body():
    nothing = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "60"], stdout=nothing, stderr=nothing)
    print(child.pid, flush=True)
    with importing():
        import torch
        time.sleep(30)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_raised_into_the_import_of_torch(
    tmp_path: Path, checkout: Path, sent: signal.Signals, code: int
) -> None:
    """Its C++ calls Python where an exception ends the process with SIGABRT.

    A command that has declared it ends in the middle, with its processes.
    """
    (tmp_path / "torch.py").write_text(TORCH)
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTS_TORCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{checkout}"},
    )
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    assert process.stdout.readline() == "importing\n"
    process.send_signal(sent)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (code, "", "stopped\n")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


SWALLOWS = """
import sys, time
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.progress import Progress

def body():
    print("at work", flush=True)
    with Progress(enabled=False) as progress:
        try:
            time.sleep(30)
        except BaseException:
            pass  # as a destructor does
        while True:
            progress.show("training")

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


def test_what_was_swallowed_is_raised_again_where_a_command_waits() -> None:
    assert terminated(SWALLOWS) == (143, "", "stopped\n")
