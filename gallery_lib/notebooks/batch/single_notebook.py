"""Results of one executed notebook, in the form of a batch of one.

`prepare.sh --run` leaves such a folder. It holds the notebook that papermill wrote and, below it,
the runs and comparisons that the cells started. A notebook's own folder in a batch
(`runs/night/resnet50`) can be read as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.batch import evidence
from gallery_lib.notebooks.batch.record import comparisons_in
from gallery_lib.system.json_files import converted, read_json


def executed_notebook(folder: Path) -> Path | None:
    """Return the notebook that papermill wrote into `folder`; None unless there is exactly one."""
    notebooks = list(folder.glob("*.ipynb"))
    return notebooks[0] if len(notebooks) == 1 else None


def _environment(folder: Path) -> dict[str, Any]:
    for path in sorted(folder.rglob("comparison.json")):
        return read_comparison(path.parent).baseline.environment
    return {}


def read_single(executed: Path) -> dict[str, Any]:
    """Return the results of one executed notebook, under the names of `report.json`.

    These are the notebook's status, seconds, parameters and comparisons, and the machine that they
    were measured on. The status comes from the notebook's cells and its runs. papermill noted the
    seconds and the parameters.
    """
    folder = executed.parent
    notebook = read_json(executed, dict[str, Any], again="Run it again.")
    noted = converted(notebook.get("metadata", {}), dict[str, Any], "metadata").get("papermill", {})
    outcome = evidence.judge(
        executed,
        evidence.Ended(exit_code=0, ended_by=None, because="", oom_kills=0),
        measures=False,
    )
    passed = outcome.status == "passed" and evidence.problem_of_runs(folder, measures=False) is None
    values = {
        "status": "passed" if passed else "failed",
        "seconds": noted.get("duration") or 0.0,
        "parameters": noted.get("parameters", {}),
        "comparisons": comparisons_in(folder),
    }
    return {"machine": _environment(folder), "notebooks": {executed.stem: values}}
