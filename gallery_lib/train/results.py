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
from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.machine_load import MachineLoad

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
    # per_device and global: steady state, by the median step; sustained: of all processes, by the
    # mean step of `sustained`, where it has one; whole_run: with start-up, without evaluation.
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
    # What fitted of the file of weights that the run started from; empty: weights were drawn.
    started_from: dict[str, Any] = field(default_factory=dict)
    # step, rank: where the loss was first no finite number; None: nowhere.
    diverged_at: dict[str, Any] | None = None
    status: str = "finished"  # "diverged" where it ended there
    # What else wanted the machine; None: not looked at, as in a comparison, which looks itself.
    load: MachineLoad | None = None
    tuning: str = ""  # why `--tune` chose as it did, as a table; '' without tuning
    # Where the run was resumed: step, lost_steps, processes_before, processes.
    # Its times are then those of several processes' lives.
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    # step_seconds: mean over at least ten times the batches that loading processes have in flight;
    # input_seconds: wait for data in it, and steady_input_seconds in a usual step; steps: how many.
    # Of a run with fewer than steps_needed steps: steps and steps_needed alone. Older: empty.
    sustained: dict[str, float] = field(default_factory=dict)
    schema: int = SCHEMA


def busy_line(results: Results) -> str:
    """Return what else wanted the machine during a run, and what to do; '' for a quiet one."""
    return results.load.sentence() if results.load else ""


_NOTICEABLE = 0.05
"""Part of the steady step by which a sustained one is longer before it is said."""


def hidden_wait(steady_seconds: float, sustained: dict[str, float]) -> float:
    """Return how long a sustained step waits for data beyond a steady one, in seconds.

    It is 0 where the sustained step is hardly longer, or longer for other reasons.
    """
    if "step_seconds" not in sustained:
        return 0.0
    longer = sustained["step_seconds"] - steady_seconds
    wait = sustained["input_seconds"] - sustained["steady_input_seconds"]
    return wait if longer > _NOTICEABLE * steady_seconds and wait > longer / 2 else 0.0


def data_lines(data: dict[str, Any]) -> list[str]:
    """Return `Results.data` as lines for people: classes and outputs, what a folder leaves out."""
    lines = list(data.get("notices", []))
    if data.keys() >= {"classes", "outputs"}:
        outputs = f"outputs of the model: {data['outputs']}"
        lines.insert(0, f"classes of the training data: {data['classes']}; {outputs}")
    return lines


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


def read_results(run_dir: Path | str) -> Results:
    """Return the results of a finished run.

    Raises:
        InputError: when there are none, or when their schema or shape is another.
    """
    check_folder(run_dir)
    path = Path(run_dir) / "results.json"
    try:
        return read_json(path, Results, again=_AGAIN, schema=SCHEMA)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that run did not finish. Its log-rank0.txt says why.",
            parameter=str(path),
        ) from None
