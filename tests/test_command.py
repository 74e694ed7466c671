"""How a command ends when it is told to: with an exit code, one line, and nothing half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

AT_WORK = """
import sys, tempfile, time
from gallery_lib.command import exit_code_of

def body():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("at work", flush=True)
        time.sleep(60)

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_stopped_tidies_up(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", AT_WORK, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(sent)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (code, "stopped\n")
    assert list(tmp_path.iterdir()) == []
