"""`gallery run` with real kernels: faults, interrupts, resumption, a terminal, nothing left."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from notebooks.batch.runner import Runner, read
from tiny_notebooks import write_notebook
from worker_processes import wait_until

from gallery_lib.notebooks.evidence import read_log, started_cell

pytestmark = pytest.mark.slow


@pytest.fixture
def runner(kernel: dict[str, str]) -> Iterator[Runner]:
    """Yield a Runner that has left nothing behind in the end, whatever happened."""
    one = Runner(kernel, uuid.uuid4().hex)
    yield one
    for process in one.left():
        process.kill()


SLEEP = "import subprocess\nchild = subprocess.Popen(['sleep', '500'], start_new_session=True)"
FAULTS = {  # the cells, the status, and the reason
    "dies": (
        [SLEEP, "import os\nos.kill(os.getpid(), 9)"],
        "kernel died",
        "the kernel was gone, in cell 2 of 3, `import os`",
    ),
    "hungry": (["blocks = []", "raise MemoryError('planted')"], "failed", "MemoryError: planted"),
    "leaves": (
        ["1 + 1", "raise SystemExit(0)"],
        "failed",
        "1 of 3 code cells never ran; a cell left with SystemExit; the first is cell 3 of 3",
    ),
    "raises": (["1 + 1", "raise ValueError('planted')"], "failed", "ValueError: planted"),
    "sleeps": (
        ["import time", f"{SLEEP}\ntime.sleep(500)"],
        "timeout",
        "still running at its deadline of 15 s, in cell 2 of 3",
    ),
    "unharmed": ([], "passed", "None"),
}


def test_each_fault_has_its_status_and_reason_and_leaves_no_process(
    tmp_path: Path, runner: Runner
) -> None:
    paths = [
        str(write_notebook(tmp_path, name, *cells, "print('still here')"))
        for name, (cells, _, _) in FAULTS.items()
    ]
    code, output = runner.run(tmp_path / "out", *paths, "--deadline", "15")
    assert (code, runner.left()) == (1, [])
    records = read(tmp_path / "out")["notebooks"]
    for name, (_, status, reason) in FAULTS.items():
        record = records[name]
        assert record["status"] == status and reason in str(record["reason"]), record
        # The log has the notebook's words, not papermill's insides.
        assert any("Cell" in line for line in record["log_tail"])
        assert f"{name}: {status}" in output
    (suite,) = ElementTree.parse(tmp_path / "out" / "report.xml").getroot()
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["6", "3", "2", "0"]
    assert "1 of 6 passed; 3 failed, 1 timeout, 1 kernel died" in output
    assert "ValueError: planted" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_and_reports_what_was_done(
    tmp_path: Path, runner: Runner, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    paths = [
        str(write_notebook(tmp_path, "first", "import time\ntime.sleep(500)")),
        str(write_notebook(tmp_path, "second", "1")),
    ]
    process = runner.start(out, *paths)
    wait_until(lambda: started_cell(read_log(out / "first")), 180)
    code, output = runner.run(out, *paths, "--resume")
    assert (code, "another `gallery run` is at work" in output) == (2, True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, runner.left()) == (130, [])
    report = read(out)
    assert (report["interrupted_by"], report["ended"] is None) == (number.name, False)
    first, second = report["notebooks"].values()
    assert first["status"] == second["status"] == "not run"
    assert f"interrupted by {number.name} after" in first["reason"]
    assert second["reason"] == f"interrupted by {number.name} before its turn"
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
    wait_until(lambda: started_cell(read_log(out / "second")), 180)
    process.kill()
    process.wait()
    wait_until(lambda: not runner.left(), 10)  # nothing outlives the runner, however it went
    report = read(out)
    assert report["ended"] is None
    assert [one["status"] for one in report["notebooks"].values()] == ["passed", "not run"]

    go.touch()
    code, output = runner.run(out, *paths)
    assert (code, "Add --resume to go on with it" in output) == (2, True)
    # The notebook changed while it ran, so what passed was another notebook.
    for folder in ("second-2", "second-3"):
        code, output = runner.run(out, *paths, "--resume")
        assert code == 0, output
        first, second = read(out)["notebooks"].values()
        assert (first["kept"], second["kept"], second["folder"]) == (True, False, folder)
        assert "first: passed (kept)" in output and "2 of 2 passed" in output
    assert count.read_text() == "x"


def test_parameters_arrive_with_their_type_and_a_terminal_gets_a_table(
    tmp_path: Path, runner: Runner
) -> None:
    path = write_notebook(
        *(tmp_path, "typed", "assert (steps, rate) == (5, 1e-5)"),
        parameters="steps: int = 3\nrate: float = None",
    )
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
    assert (record["status"], record["parameters"]) == ("passed", {"steps": 5, "rate": 1e-5})
    text = shown.decode()
    assert "running" in text and "\x1b[" in text  # a table that is drawn again and again
    assert "typed: passed, 3 of 3 code cells" in text
