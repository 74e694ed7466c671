"""A command that is told to end does so with an exit code, one line, and nothing half-written."""

from __future__ import annotations

import errno
import functools
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gallery_lib.console.exit_code import exit_code_of

COMMAND = """
import os, subprocess, sys, time
from gallery_lib.console.exit_code import exit_code_of, importing
{body}
sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""
PRINTING = """
def body():
    for number in range({lines}):
        print(number)
    return {code}
"""


def program(body: str) -> list[str]:
    """Return the words of a command with this body."""
    return [sys.executable, "-c", COMMAND.format(body=body)]


@pytest.mark.parametrize(("lines", "code"), [(2, 3), (100_000, 0)])
def test_a_command_whose_output_nobody_reads_any_more_ends_in_silence(
    lines: int, code: int
) -> None:
    pipe = subprocess.PIPE
    words = program(PRINTING.format(lines=lines, code=code))
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (141, "")


def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        words = program(PRINTING.format(lines=10, code=0))
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    said = "error: standard output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_what_the_system_refuses_is_one_line_with_the_place_and_what_moves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "runs" / "a.json")
    errors = [BrokenPipeError("no reader"), OSError(errno.ENOSPC, "No space left on device", path)]

    def body() -> None:
        raise errors.pop()

    assert exit_code_of(body, error_prefix="error", interrupted="stopped") == 1
    with pytest.raises(BrokenPipeError):  # a pipe that is not our output is a defect of ours
        exit_code_of(body, error_prefix="error", interrupted="stopped")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {tmp_path}/runs/a.json: No space left on device, ")
    assert "MiB are free there. GALLERY_RUNS_DIR moves" in said


@pytest.mark.parametrize(("encoding", "printed"), [("ascii", "1.22? ?"), ("utf-8", "1.22× €")])
def test_letters_that_a_terminal_lacks_are_replaced(encoding: str, printed: str) -> None:
    words = program("def body(): print('1.22\\u00d7 \\u20ac')")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, capture_output=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout.decode(encoding).strip(), done.stderr) == (0, printed, b"")


# --------------------------------------------------------------------------------------------------
# Signals


def test_a_command_in_a_thread_that_gets_no_signals_has_its_exit_code() -> None:
    body = functools.partial(exit_code_of, lambda: 3, error_prefix="error", interrupted="stopped")
    assert ThreadPoolExecutor().submit(body).result() == 3


COMPUTES = """
def body():
    print("at work", flush=True)
    while True:
        sum(range(1000))
"""
CLEANS_UP = """
def body():
    try:
        print("at work", flush=True)
        time.sleep(30)
    finally:
        print("cleaned up", flush=True)
"""
BODIES = {"a computation": (COMPUTES, ""), "a body that cleans up": (CLEANS_UP, "cleaned up\n")}


def ended_by(
    sent: signal.Signals, words: list[str], first: str = "at work\n", **variables: str
) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command that gets the signal after a line."""
    pipe, environment = subprocess.PIPE, {**os.environ, **variables}
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert process.stdout is not None and process.stdout.readline() == first
    process.send_signal(sent)
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.parametrize("place", BODIES)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_heeded_in(place: str, sent: signal.Signals, code: int) -> None:
    body, output = BODIES[place]
    assert ended_by(sent, program(body)) == (code, output, "stopped\n")


TORCH = """
import time
print("importing", flush=True)
began = time.monotonic()
while time.monotonic() - began < 1.0:
    time.sleep(0.01)
print("imported", flush=True)
"""
IMPORTS_TORCH = """
def body():
    with importing():
        import torch
        time.sleep(30)
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_raised_into_the_import_of_torch(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, code: int
) -> None:
    """Its C++ calls Python where an exception ends the process with SIGABRT."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}{os.pathsep}{checkout}"
    done = ended_by(sent, program(IMPORTS_TORCH), "importing\n", PYTHONPATH=path)
    assert done == (code, "", "\ninterrupted\n")
