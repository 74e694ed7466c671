"""Record of one training run: `config.json`, `steps.jsonl`, a log per rank.

Rank 0 logs to standard output and to `log-rank0.txt`. The other ranks log only to their own file. A
line of `steps.jsonl` is complete or absent.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from gallery_lib.console.text import rate, visible
from gallery_lib.errors import InputError
from gallery_lib.system.files import write_json, written_if_possible

STEPS_FILE = "steps.jsonl"
_TAIL_BYTES = 2**20
"""Bytes at the end of the log in which its last line is."""


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
