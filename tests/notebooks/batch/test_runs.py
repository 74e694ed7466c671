"""`gallery run` with real kernels: interrupts, resumption, a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
from pathlib import Path

import pytest
from notebooks.batch.runner import Runner, read, wait_for
from tiny_notebooks import write_notebook

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_and_reports_what_was_done(
    tmp_path: Path, runner: Runner, number: signal.Signals
) -> None:
    paths = [
        write_notebook(tmp_path, "first", "import time\ntime.sleep(500)"),
        write_notebook(tmp_path, "second", "1"),
    ]
    process = runner.start(tmp_path / "out", *map(str, paths))
    log = tmp_path / "out" / "first" / "papermill.txt"
    wait_for(lambda: log.exists() and "Executing Cell 1" in log.read_text())
    code, output = runner.run(tmp_path / "out", *map(str, paths), "--resume")
    assert (code, "another `gallery run` is at work" in output) == (2, True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert runner.left() == []
    report = read(tmp_path / "out")
    assert (report["interrupted_by"], report["ended"] is None) == (number.name, False)
    assert {name: record["status"] for name, record in report["notebooks"].items()} == {
        "first": "not run",
        "second": "not run",
    }
    assert f"interrupted by {number.name} after" in report["notebooks"]["first"]["reason"]
    assert (
        report["notebooks"]["second"]["reason"] == f"interrupted by {number.name} before its turn"
    )
    assert f"0 of 2 passed; 2 not run, interrupted by {number.name}" in output


def test_resume_after_the_runner_was_killed_runs_only_what_is_missing_or_was_changed(
    tmp_path: Path, runner: Runner
) -> None:
    go, count, itself = tmp_path / "go", tmp_path / "count", str(tmp_path / "second.ipynb")
    counting = f"with open({str(count)!r}, 'a') as file:\n    file.write('x')"
    waiting = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.1)"
    changing = f"with open({itself!r}, 'a') as file:\n    file.write(' ')"
    paths = [
        str(write_notebook(tmp_path, "first", counting)),
        str(write_notebook(tmp_path, "second", waiting, changing)),
    ]
    out = tmp_path / "out"
    process = runner.start(out, *paths)
    log = out / "second" / "papermill.txt"
    wait_for(lambda: log.exists() and "Executing Cell 1" in log.read_text())
    process.kill()
    process.wait()
    wait_for(lambda: not runner.left(), 10)  # nothing outlives the runner, however it went
    report = read(out)
    assert report["ended"] is None
    assert {name: record["status"] for name, record in report["notebooks"].items()} == {
        "first": "passed",
        "second": "not run",
    }

    go.touch()
    code, output = runner.run(out, *paths)
    assert (code, "Add --resume to go on with it" in output) == (2, True)
    # The notebook changed while it ran, so what passed was another notebook.
    for folder in ("second-2", "second-3"):
        code, output = runner.run(out, *paths, "--resume")
        assert code == 0, output
        records = read(out)["notebooks"]
        assert (
            records["first"]["kept"],
            records["second"]["kept"],
            records["second"]["folder"],
        ) == (True, False, folder)
        assert "first: passed (kept)" in output and "2 of 2 passed" in output
    assert count.read_text() == "x"


def test_parameters_arrive_with_their_type_and_a_terminal_gets_a_table(
    tmp_path: Path, runner: Runner
) -> None:
    parameters = "steps: int = 3\nrate: float = None"
    check = "assert (steps, rate) == (5, 1e-5)"
    path = write_notebook(tmp_path, "typed", check, parameters=parameters)
    terminal, other_end = pty.openpty()
    words = ["-p", "steps", "5", "-p", "rate", "1e-5"]
    with os.fdopen(terminal, "rb") as screen:
        process = runner.start(tmp_path / "out", str(path), *words, stdout=other_end)
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # what the end of a terminal gives
            while part := screen.read1(65536):
                shown += part
    assert process.wait(timeout=60) == 0
    record = read(tmp_path / "out")["notebooks"]["typed"]
    assert record["status"] == "passed"
    assert record["parameters"] == {"steps": 5, "rate": 1e-5}
    text = shown.decode()
    assert "running" in text and "\x1b[" in text  # a table that is drawn again and again
    assert "typed: passed, 3 of 3 code cells" in text
