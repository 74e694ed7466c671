"""The shape of `results.json`, how it is written (last, and atomically) and how it is read back.

A run directory without a valid `results.json` holds a run that did not finish. `SCHEMA` goes up when a field
changes its meaning.
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
    """What one training run measured. Times in seconds, memory in bytes, rates in samples per second."""

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
    samples_per_second: dict[
        str, float
    ]  # per_device and global: steady state; whole_run: with start-up, without evaluation
    phase_seconds: dict[
        str, float
    ]  # input, forward, backward, optimizer of usual steps; exposed_communication, a part of backward
    startup_seconds: dict[
        str, float
    ]  # total: launch to the end of the warm-up, less its steady-state cost; compile: part of it
    peak_memory_bytes: dict[
        str, int | None
    ]  # host: of rank 0's process; device: None without a GPU
    page_faults: float  # minor ones of rank 0's process in a step after the warm-up, the median
    skipped_steps: int
    techniques: dict[
        str, str
    ]  # what the accelerated backend did, or why it did not (`kernels`: those that ran); empty for the baseline
    data: dict[str, Any] = field(
        default_factory=dict
    )  # items of train and held_out, input size, notices, classes and outputs of the head
    diverged_at: dict[str, Any] | None = (
        None  # step, rank, what: where the loss was no finite number first; None: nowhere
    )
    status: str = "finished"  # "diverged" where it ended there
    schema: int = SCHEMA


def data_lines(data: dict[str, Any]) -> list[str]:
    """Return what `Results.data` says to people, a line each: classes and outputs, and what is left out of a folder."""
    classes = (
        [
            f"classes of the training data: {data['classes']}; outputs of the model: {data['outputs']}"
        ]
        if "outputs" in data
        else []
    )
    return [*classes, *data.get("notices", [])]


def write_results(run_dir: Path, results: Results) -> None:
    """`results.json` in `run_dir`: the mark of a run that finished."""
    write_json(run_dir / "results.json", dataclasses.asdict(results))


def check_folder(folder: Path | str) -> None:
    """InputError where a run or a comparison is looked for and no folder is."""
    if not Path(folder).is_dir():
        what = "is a file" if Path(folder).exists() else "does not exist"
        raise InputError(
            f"{folder} {what}. Give the folder of a run or a comparison, which it names when it ends."
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
"""What is read of every run without asking whether it is there."""


def results_from(values: Any, place: str = "") -> Results:
    """Return plain JSON as Results. Raises Misfit where something is missing, not known, or of another type."""
    if isinstance(values, dict):
        values = {
            "data": {},
            "diverged_at": None,
            **values,
        }  # of a run before there were such fields
    results = converted(values, Results, place)
    for name, asked in _ASKED_OF_ALL.items():
        for key, kind in asked.items():
            where = f"{place}.{name}.{key}".lstrip(".")
            if key not in getattr(results, name):
                raise Misfit(f"{where}: is missing")
            converted(getattr(results, name)[key], kind, where)
    converted(
        results.loss["curve"], list[tuple[int, float | None]], f"{place}.loss.curve".lstrip(".")
    )
    return results


def read_results(run_dir: Path | str) -> Results:
    """Return the results of a finished run. Raises InputError when there are none, or of another schema or shape."""
    check_folder(run_dir)
    path = Path(run_dir) / "results.json"
    try:
        values = read_json(path, dict[str, Any], again=_AGAIN)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that run did not finish. Its log-rank0.txt says why."
        ) from None
    if values.get("schema") != SCHEMA:
        raise InputError(
            f"{path} has schema {values.get('schema')}, and this version reads {SCHEMA}. {_AGAIN}"
        )
    try:
        return results_from(values)
    except Misfit as error:
        raise InputError(f"{path} is damaged, or of another version: {error}. {_AGAIN}") from None
