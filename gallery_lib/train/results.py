"""Schema of `results.json`, its atomic writing at the end of a run, and its reading.

A run directory without a valid `results.json` holds a run that did not finish. `SCHEMA` goes up
when a field changes its meaning.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.system.json_files import Misfit, converted, read_json, write_json

SCHEMA = 1
_AGAIN = "Run it again."


@dataclass(frozen=True)
class Results:
    """Measurements of one training run.

    Times are in seconds, memory in bytes, rates in samples per second.
    """

    task: str
    config: dict[str, Any]
    environment: dict[str, Any]
    world_size: int
    nodes: int
    steps: int
    warmup_steps: int
    loss: dict[str, Any]  # first, last, curve: [[step, loss], …]
    metrics: dict[str, float]  # on held-out data, by name; empty when not evaluated
    step_seconds: dict[str, float]  # p50, p75, p90, p95, mean, of steps after the warm-up
    # per_device and global: steady state; whole_run: with start-up, without evaluation.
    samples_per_second: dict[str, float]
    # input, forward, backward, optimizer of usual steps; exposed_communication, part of backward.
    phase_seconds: dict[str, float]
    # total: launch to the end of the warm-up, less its steady-state cost; compile: part of it.
    startup_seconds: dict[str, float]
    # host: of rank 0's process; device: None without a GPU.
    peak_memory_bytes: dict[str, int | None]
    page_faults: float  # median minor faults of rank 0's process in a step after the warm-up
    skipped_steps: int
    # What the accelerated backend did, or why it did not (`kernels`: those that ran).
    # Empty for the baseline.
    techniques: dict[str, str]
    # Items of train and held_out, input size, notices, classes and outputs of the head.
    data: dict[str, Any] = field(default_factory=dict)
    # schedule, first, last, changes ([[step, rate], …]) of the learning rate.
    learning_rate: dict[str, Any] = field(default_factory=dict)
    # What fitted of the file of weights that the run started from; empty: weights were drawn.
    started_from: dict[str, Any] = field(default_factory=dict)
    # step, rank, what: where the loss was first no finite number; None: nowhere.
    diverged_at: dict[str, Any] | None = None
    status: str = "finished"  # "diverged" where it ended there
    # Where the run was resumed: step, lost_steps, processes_before, processes, resumed_at,
    # checkpoint (None: it started again). Its times are then those of several processes' lives.
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    schema: int = SCHEMA


def data_lines(data: dict[str, Any]) -> list[str]:
    """Return `Results.data` as lines for people: classes and outputs, what a folder leaves out."""
    classes = (
        [
            f"classes of the training data: {data['classes']}; outputs of the model: "
            f"{data['outputs']}"
        ]
        if "outputs" in data
        else []
    )
    return [*classes, *data.get("notices", [])]


def write_results(run_dir: Path, results: Results) -> None:
    """Write `results.json` to `run_dir`; the file marks a run that finished."""
    write_json(run_dir / "results.json", dataclasses.asdict(results))


def check_folder(folder: Path | str) -> None:
    """Raise InputError if `folder`, the folder of a run or a comparison, is no existing folder."""
    if not Path(folder).is_dir():
        what = "is a file" if Path(folder).exists() else "does not exist"
        raise InputError(
            f"{folder} {what}. Give the folder of a run or a comparison, which it names when it "
            "ends.",
            parameter=str(folder),
        )


_ASKED_OF_ALL: dict[str, dict[str, Any]] = {
    "config": {"amp_level": str, "batch_size": int, "threads": int},
    "environment": {
        "device": str,
        "cpu": str,
        "cores": int,
        "isa": list,
        "memory_bytes": int,
        "python": str,
        "torch": str,
    },
    "step_seconds": {"p50": float},
    "samples_per_second": {"per_device": float, "global": float, "whole_run": float},
    "startup_seconds": {"total": float, "compile": float},
    "peak_memory_bytes": {"host": Any, "device": Any},
    "loss": {"first": Any, "last": Any, "curve": list},
}
"""Values that are read from every run without a check that they exist."""


def results_from(values: Any, place: str = "") -> Results:
    """Return plain JSON as `Results`.

    A value of another type is wrong.

    Raises:
        Misfit: for a missing, unknown or wrong value.
    """
    if isinstance(values, dict):
        # Older runs lack these fields.
        later: dict[str, Any] = {
            "data": {},
            "interruptions": [],
            "learning_rate": {},
            "started_from": {},
        }
        values = {**later, "diverged_at": None, **values}
    results = converted(values, Results, place)
    for name, kinds in _ASKED_OF_ALL.items():
        for key, kind in kinds.items():
            where = f"{place}.{name}.{key}".lstrip(".")
            if key not in getattr(results, name):
                raise Misfit("is missing", where)
            converted(getattr(results, name)[key], kind, where)
    converted(
        results.loss["curve"], list[tuple[int, float | None]], f"{place}.loss.curve".lstrip(".")
    )
    return results


def read_results(run_dir: Path | str) -> Results:
    """Return the results of a finished run.

    Raises:
        InputError: when there are none, or when their schema or shape is another.
    """
    check_folder(run_dir)
    path = Path(run_dir) / "results.json"
    try:
        values = read_json(path, dict[str, Any], again=_AGAIN)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that run did not finish. Its log-rank0.txt says why.",
            parameter=str(path),
        ) from None
    if values.get("schema") != SCHEMA:
        raise InputError(
            f"{path} has schema {values.get('schema')}, and this version reads {SCHEMA}. {_AGAIN}",
            parameter="schema",
        )
    try:
        return results_from(values)
    except Misfit as error:
        raise InputError(
            f"{path} is damaged, or of another version: {error}. {_AGAIN}",
            parameter=error.place or str(path),
        ) from None
