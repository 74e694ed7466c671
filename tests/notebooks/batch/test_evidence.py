"""Evidence for and against a notebook having run, planted in files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import made_comparison
import pytest
from tiny_notebooks import write_notebook

from gallery_lib.notebooks.batch import evidence
from gallery_lib.notebooks.batch.evidence import Ended, judge, problem_of_runs
from gallery_lib.train.results import write_results

LOSSES = [3.0, 3.2, 2.5, 2.6, 2.0, 2.1, 1.5, 1.6]
BY_ITSELF = Ended(0, None, "", 0)


def write_run(
    folder: Path, losses: list[float | None], asked: int | None = None, logged: int | None = None
) -> None:
    """Write a run directory as a finished run leaves it."""
    folder.mkdir(parents=True)
    steps = len(losses)
    (folder / "config.json").write_text(
        json.dumps({"max_steps": steps if asked is None else asked})
    )
    (folder / "steps.jsonl").write_text(
        "".join(
            json.dumps({"step": n + 1}) + "\n" for n in range(steps if logged is None else logged)
        )
    )
    curve = [[n + 1, loss] for n, loss in enumerate(losses)]
    loss = {"first": losses[0], "last": losses[-1], "curve": curve}
    write_results(folder, dataclasses.replace(made_comparison.results(0.5), steps=steps, loss=loss))


def executed(folder: Path, *cells: tuple[str, int | None, list[dict]]) -> Path:
    """Write a notebook with (source, execution count, outputs) per cell, and papermill's log."""
    path = write_notebook(folder, "one", *(source for source, _, _ in cells))
    values = json.loads(path.read_text())
    for cell, (_, count, outputs) in zip(values["cells"], cells, strict=True):
        cell.update(execution_count=count, outputs=outputs)
        # What papermill recorded must not matter.
        cell["metadata"]["papermill"] = {
            "status": "completed",
            "exception": False,
        }
    path.write_text(json.dumps(values))
    (folder / evidence.LOG_FILE).write_text(
        "\x1b[31mExecuting Cell 1----\x1b[0m\nEnding Cell 1----\nExecuting Cell 2----\nlast words\n"
    )
    return path


def error(name: str, value: str) -> dict:
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": []}


def test_runs_with_all_steps_and_a_falling_loss_are_fine(tmp_path: Path) -> None:
    write_run(tmp_path / "compare" / "baseline", LOSSES)
    assert problem_of_runs(tmp_path, measures=False) is None


def test_a_noisy_last_step_does_not_hide_that_the_loss_fell(tmp_path: Path) -> None:
    write_run(tmp_path / "baseline", [*LOSSES[:-1], 3.1])
    assert problem_of_runs(tmp_path, measures=False) is None


@pytest.mark.parametrize(
    ("losses", "asked", "logged", "message"),
    [
        (LOSSES, 9, None, "was to take 9 steps, its results say 8, its log 8"),
        (LOSSES, None, 7, "was to take 8 steps, its results say 8, its log 7"),
        (
            LOSSES[::-1],
            None,
            None,
            "the loss of the run compare/baseline did not fall (1.600 → 3.000 in 8 steps)",
        ),
        ([3.0] * 8, None, None, "did not fall"),
        ([*LOSSES[:-1], None], None, None, "is not finite"),
    ],
)
def test_each_defect_of_a_run_is_named(
    tmp_path: Path, losses: list, asked: int | None, logged: int | None, message: str
) -> None:
    write_run(tmp_path / "compare" / "baseline", losses, asked, logged)
    assert message in str(problem_of_runs(tmp_path, measures=False))


def test_a_run_that_did_not_finish_or_left_half_a_file_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "baseline", LOSSES)
    (tmp_path / "baseline" / "results.json").write_text('{"schema": 1')
    assert "is damaged" in str(problem_of_runs(tmp_path, measures=False))
    (tmp_path / "baseline" / "results.json").unlink()
    assert "did not finish" in str(problem_of_runs(tmp_path, measures=False))


def test_a_models_own_config_is_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"hidden_size": 768}')
    assert problem_of_runs(tmp_path, measures=False) is None


def test_a_notebook_that_should_measure_must_leave_a_comparison(tmp_path: Path) -> None:
    assert problem_of_runs(tmp_path, measures=False) is None
    assert problem_of_runs(tmp_path, measures=True) == "it ran, but left no comparison"


def test_a_notebook_passes_when_nothing_speaks_against_it(tmp_path: Path) -> None:
    outcome = judge(
        executed(tmp_path, ("1", 1, []), ("2", 2, []), ("  ", None, [])), BY_ITSELF, measures=False
    )
    assert (outcome.status, outcome.reason, outcome.cells_run, outcome.cells) == (
        "passed",
        None,
        2,
        2,
    )
    assert outcome.log_tail[0] == "Executing Cell 1----"


@pytest.mark.parametrize(
    ("second", "ended", "status", "part"),
    [
        ((2, []), Ended(1, None, "", 0), "failed", "exit code 1: last words"),
        (
            (None, []),
            BY_ITSELF,
            "failed",
            "1 of 2 code cells never ran; the first is cell 2 of 2, `second`",
        ),
        ((None, []), Ended(138, None, "", 0), "kernel died", "in cell 2 of 2, `second`"),
        ((None, []), Ended(138, None, "", 1), "out of memory", "Linux ended the kernel"),
        (
            (None, []),
            Ended(143, "timeout", "still running", 0),
            "timeout",
            "still running, in cell 2 of 2",
        ),
        (
            (2, [error("ValueError", "planted\nand more")]),
            Ended(1, None, "", 0),
            "failed",
            "ValueError: planted",
        ),
        ((2, [error("MemoryError", "")]), Ended(1, None, "", 0), "out of memory", "MemoryError"),
        (
            (2, [error("RuntimeError", "CUDA out of memory. Tried …")]),
            Ended(1, None, "", 0),
            "out of memory",
            "CUDA out of memory",
        ),
        (
            (2, [error("RunFailed", "rank 0 was killed by SIGKILL")]),
            Ended(1, None, "", 0),
            "failed",
            "SIGKILL",
        ),
        (
            (2, [error("RunFailed", "rank 0 was killed by SIGKILL")]),
            Ended(1, None, "", 1),
            "out of memory",
            "SIGKILL",
        ),
    ],
)
def test_the_status_follows_from_what_is_left_behind(
    tmp_path: Path, second: tuple, ended: Ended, status: str, part: str
) -> None:
    outcome = judge(
        executed(tmp_path, ("first", 1, []), ("second", *second)), ended, measures=False
    )
    assert outcome.status == status
    assert part in str(outcome.reason)


@pytest.mark.parametrize("text", [None, '{"cells": ['])
def test_no_notebook_or_half_of_one_has_not_run(tmp_path: Path, text: str | None) -> None:
    if text:
        (tmp_path / "one.ipynb").write_text(text)
    outcome = judge(tmp_path / "one.ipynb", Ended(1, None, "", 0), measures=False)
    assert (outcome.status, outcome.reason) == (
        "failed",
        "papermill ended with exit code 1 before anything ran: it said nothing",
    )
