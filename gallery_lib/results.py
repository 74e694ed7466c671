"""The shape of `results.json`, how it is written (last, and atomically) and how it is read back.

A run directory without a valid `results.json` holds a run that did not finish. `SCHEMA` goes up when a field
changes its meaning.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError

SCHEMA = 1


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
    samples_per_second: dict[str, float]  # per_device and global: steady state; whole_run: with start-up, without evaluation
    phase_seconds: dict[str, float]  # input, forward, backward, optimizer of usual steps; exposed_communication, a part of backward
    startup_seconds: dict[str, float]  # total: launch to the end of the warm-up, less its steady-state cost; compile: part of it
    peak_memory_bytes: dict[str, int | None]  # host: of rank 0's process; device: None without a GPU
    page_faults: float  # minor ones of rank 0's process in a step after the warm-up, the median
    skipped_steps: int
    techniques: dict[str, str]  # what the accelerated backend did, or why it did not (`kernels`: those that ran); empty for the baseline
    data: dict[str, Any] = field(default_factory=dict)  # items of train and held_out, input size, notices, classes and outputs of the head
    status: str = "finished"
    schema: int = SCHEMA


def data_lines(data: dict[str, Any]) -> list[str]:
    """Return what `Results.data` says to people, a line each: classes and outputs, and what is left out of a folder."""
    classes = [f"classes of the training data: {data['classes']}; outputs of the model: {data['outputs']}"] if "outputs" in data else []
    return [*classes, *data.get("notices", [])]


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON at `path`, which never holds half of it. NaN is refused: a number is true or absent."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_results(run_dir: Path, results: Results) -> None:
    """`results.json` in `run_dir`: the mark of a run that finished."""
    write_json(run_dir / "results.json", dataclasses.asdict(results))


def check_folder(folder: Path | str) -> None:
    """InputError where a run or a comparison is looked for and no folder is."""
    if not Path(folder).is_dir():
        what = "is a file" if Path(folder).exists() else "does not exist"
        raise InputError(f"{folder} {what}. Give the folder of a run or a comparison, which it names when it ends.")


def read_results(run_dir: Path | str) -> Results:
    """The results of a finished run. Raises InputError when there are none, or of another schema."""
    check_folder(run_dir)
    path = Path(run_dir) / "results.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: that run did not finish. Its log-rank0.txt says why.") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is damaged ({error}). Run it again.") from None
    if values.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {values.get('schema')}, and this version reads {SCHEMA}. Run it again.")
    names = {f.name for f in dataclasses.fields(Results)}
    values.setdefault("data", {})  # of a run before there was such a field
    if wrong := set(values) ^ names:
        raise InputError(f"{path} lacks or adds fields: {', '.join(sorted(wrong))}. Run it again.")
    return Results(**values)
