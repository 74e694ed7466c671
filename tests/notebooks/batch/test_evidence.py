"""Evidence for and against a notebook having run, planted in files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import made_comparison
import pytest
from tiny_notebooks import write_notebook

from gallery_lib.notebooks import evidence
from gallery_lib.notebooks.evidence import Ended, judge, problem_of_runs
from gallery_lib.notebooks.schedule import where
from gallery_lib.train.results import write_results

LOSSES = [3.0, 3.2, 2.5, 2.6, 2.0, 2.1, 1.5, 1.6]
BY_ITSELF, FAILED = Ended(0), Ended(1)
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "planted\nand more"}


def write_run(folder: Path, losses: list[float | None], asked: int = 8) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"max_steps": asked}))
    curve = [[n + 1, loss] for n, loss in enumerate(losses)]
    loss = {"first": losses[0], "last": losses[-1], "curve": curve}
    write_results(
        folder, dataclasses.replace(made_comparison.results(0.5), steps=len(losses), loss=loss)
    )


@pytest.mark.parametrize(
    ("losses", "asked", "message"),
    [
        (LOSSES, 8, "None"),
        ([*LOSSES[:-1], 3.1], 8, "None"),  # a noisy last step
        (LOSSES, 9, "was to take 9 steps, its results say 8"),
        (LOSSES[::-1], 8, "baseline did not fall (1.600 → 3.000 in 8 steps)"),
        ([3.0] * 8, 8, "did not fall"),
        ([*LOSSES[:-1], None], 8, "is not finite"),
    ],
)
def test_each_defect_of_a_run_is_named(
    tmp_path: Path, losses: list[float | None], asked: int, message: str
) -> None:
    write_run(tmp_path / "compare" / "baseline", losses, asked)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 768}')  # of no run
    assert message in str(problem_of_runs(tmp_path, measures=False))


def test_a_run_that_left_half_a_file_or_no_comparison_is_named(tmp_path: Path) -> None:
    assert problem_of_runs(tmp_path, measures=True) == "it ran, but left no comparison"
    write_run(tmp_path / "baseline", [*LOSSES])
    (tmp_path / "baseline" / "results.json").write_text('{"schema": 1')
    assert "is damaged" in str(problem_of_runs(tmp_path, measures=False))
    (tmp_path / "baseline" / "results.json").unlink()
    assert "did not finish" in str(problem_of_runs(tmp_path, measures=False))


@pytest.mark.parametrize(
    ("count", "outputs", "ended", "status", "part"),
    [
        (2, [], BY_ITSELF, "passed", "None"),
        (2, [], FAILED, "failed", "exit code 1: last words"),
        (None, [], Ended(137), "failed", "papermill was killed by SIGKILL"),
        (2, [ERROR], FAILED, "failed", "ValueError: planted"),
    ],
)
def test_the_status_follows_from_what_is_left_behind(
    tmp_path: Path, count: int | None, outputs: list[Any], ended: Ended, status: str, part: str
) -> None:
    path = write_notebook(tmp_path, "one", "first", "second", "  ")
    values = json.loads(path.read_text())
    values["cells"][0].update(execution_count=1)
    values["cells"][1].update(execution_count=count, outputs=outputs)
    for cell in values["cells"]:  # what papermill recorded must not matter
        cell["metadata"]["papermill"] = {"status": "completed", "exception": False}
    path.write_text(json.dumps(values))
    (tmp_path / evidence.LOG_FILE).write_text(
        "\x1b[31mExecuting Cell 1----\x1b[0m\nEnding Cell 1----\nExecuting Cell 2----\nlast words\n"
    )
    outcome = judge(path, ended, measures=False)
    assert (outcome.status, outcome.cells) == (status, 2)
    assert part in str(outcome.reason).replace(" of 3", " of 2")
    assert outcome.log_tail[0] == "Executing Cell 1----"


def test_no_notebook_or_half_of_one_has_not_run(tmp_path: Path) -> None:
    path = tmp_path / "one.ipynb"
    nothing = judge(path, FAILED, measures=False)
    path.write_text('{"cells": [')
    assert judge(path, FAILED, measures=False) == nothing
    reason = "papermill ended with exit code 1 before anything ran: it said nothing"
    assert (nothing.status, nothing.reason) == ("failed", reason)


def test_progress_tells_the_cell(tmp_path: Path) -> None:
    cells = [*["import this"] * 4, "settings = 1\ntrain(settings)", *["show()"] * 4]
    path = tmp_path / "one.ipynb"
    assert where(path) == "starting"
    write_notebook(tmp_path, "one", *cells)
    (tmp_path / evidence.LOG_FILE).write_text("Executing Cell 4-----\nExecuting Cell 5-----\n")
    assert where(path) == "cell 5 of 9, train(settings)"
