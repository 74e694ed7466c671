"""What a run leaves in its folder: `results.json` at its end, and a record of its steps.

A folder without a valid `results.json` holds a run that did not finish. `SCHEMA` goes up when a
field changes its meaning. The record is `config.json`, `steps.jsonl` and a log for each rank. Rank
0 logs to standard output and to `log-rank0.txt`; the other ranks log only to their own file. A line
of `steps.jsonl` is complete or absent.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib.console.text import rate, visible
from gallery_lib.errors import InputError
from gallery_lib.system.files import read_json, write_json, written_if_possible
from gallery_lib.system.gpu import GpuState
from gallery_lib.system.machine_load import MachineLoad

STEPS_FILE = "steps.jsonl"
_TAIL_BYTES = 2**20
"""Bytes at the end of the log in which its last line is."""
SCHEMA = 1


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
    # host: of rank 0's process; device: of its tensors after the warm-up, None without a GPU;
    # device_reserved: what torch's allocator took for them and for captured graphs.
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
    gpu: GpuState | None = None  # rank 0's, under load; None: it does not say
    tuning: str = ""  # why `--tune` chose as it did, as a table; '' without tuning
    # Where the run was resumed: step, lost_steps, processes_before, processes.
    # Its times are then those of several processes' lives.
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    # step_seconds: mean over at least ten times the batches that loading processes have in flight;
    # input_seconds: wait for data in it, and steady_input_seconds in a usual step; steps: how many.
    # Of a run with fewer than steps_needed steps: steps and steps_needed alone. Older: empty.
    sustained: dict[str, float] = field(default_factory=dict)
    schema: int = SCHEMA


def load_line(results: Results) -> str:
    """Return what made a run's steps longer, and what to do; '' where nothing did."""
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
        return read_json(path, Results, again="Run it again.", schema=SCHEMA)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that run did not finish. Its log-rank0.txt says why.",
            parameter=str(path),
        ) from None


# --------------------------------------------------------------------------------------------------
# Record of the steps.


class RunLog:
    """Writer of the record of one rank in a run.

    `earlier` is the text of the log that a resumed run had before.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        rank: int = 0,
        earlier: str = "",
    ) -> None:
        if (run_dir / "results.json").exists():
            raise InputError(
                f"run_dir={run_dir} holds a finished run. "
                "Name a new folder, or move that one away.",
                parameter="run_dir",
            )
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir, self.rank = run_dir, rank
        self._text = (run_dir / f"log-rank{rank}.txt").open("a", buffering=1)
        self._steps = None
        if rank == 0:
            self._steps = (run_dir / STEPS_FILE).open("w", buffering=1)
            self._steps.write(earlier)

    def say(self, message: str, *, of_any_rank: bool = False) -> None:
        """Log a line for people; rank 0 shows it too, and `of_any_rank` every rank.

        Control characters are escaped, and what no UTF-8 text can hold: a folder's name may be any
        bytes.
        """
        message = visible(message)
        with written_if_possible(self.run_dir):
            print(message, file=self._text)
        if self.rank == 0 or of_any_rank:
            print(message, flush=True)

    def parameters(self, config: dict[str, Any]) -> None:
        """Write the run's options, once, before the first step."""
        if self.rank == 0:
            with written_if_possible(self.run_dir):
                write_json(self.run_dir / "config.json", config)
        self.say("parameters  " + "  ".join(f"{name}={value}" for name, value in config.items()))

    def step(
        self,
        *,
        epoch: int,
        step: int,
        batch_size: int,
        loss: float,
        learning_rate: float,
        step_seconds: list[float],
        warmup: int,
        world_size: int,
        peak_memory_bytes: int,
    ) -> None:
        """Log the state after `step`, on rank 0.

        `step_seconds` holds the time of each step since the last line. The printed time is the mean
        of those after step `warmup`, where there are any: the first ones hold compilation and
        tuning. The rate is over all ranks.
        """
        if self._steps is None:
            return
        counted = step_seconds[max(0, warmup - step + len(step_seconds)) :] or step_seconds
        mean = sum(counted) / len(counted)
        samples_per_second = batch_size * world_size / mean
        line = {
            "epoch": epoch,
            "step": step,
            "batch_size": batch_size,
            "loss": loss if math.isfinite(loss) else None,
            "learning_rate": learning_rate,
            "step_seconds": mean,
            "samples_per_second": samples_per_second,
            "peak_memory_bytes": peak_memory_bytes,
            "each_step_seconds": step_seconds,
        }
        with written_if_possible(self.run_dir):
            self._steps.write(json.dumps(line) + "\n")
        self.say(
            f"epoch {epoch}  step {step}  batch_size {batch_size}  loss {loss:.4f}  "
            f"step_time {mean:.4f} s  "
            f"{rate(samples_per_second)}  peak_memory {peak_memory_bytes / 2**30:.2f} GiB"
        )

    def metrics(self, metrics: dict[str, float]) -> None:
        """Log the held-out metrics."""
        self.say("held-out  " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))

    def close(self) -> None:
        """Close all files, so that everything is on disk."""
        for file in filter(None, (self._text, self._steps)):
            with written_if_possible(self.run_dir):
                file.close()


def read_steps(run_dir: Path | str) -> list[dict[str, Any]]:
    """Return the complete lines of `steps.jsonl`, also of a run that is still going on."""
    path = Path(run_dir) / STEPS_FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def last_step(run_dir: Path | str) -> int:
    """Return the number of the last step logged so far, 0 before the first.

    Only the file's end is read, because this function serves to watch runs.
    """
    try:
        with (Path(run_dir) / STEPS_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().split(b"\n")  # the last line is not complete yet, or empty
            return int(json.loads(lines[-2])["step"]) if len(lines) > 1 else 0
    # There is no line yet, or the file is not ours.
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0


def each_step_seconds(run_dir: Path) -> list[float]:
    """Return the time of every training step of a run, in order.

    Raises:
        InputError: without any.
    """
    durations = [time for line in read_steps(run_dir) for time in line["each_step_seconds"]]
    if not durations:
        raise InputError(
            f"{run_dir} has no steps.jsonl with the time of each step: the folder of that run is "
            "not whole. Run it again.",
            parameter=str(run_dir),
        )
    return durations
