"""Timeline of a training step, without what it computes, and the JSON file that holds it.

It tells what a step does, and when. Times are medians over steps of one process on its own. A
timeline is recorded, or was derived from a recorded one by multiplying all its times. In the second
case its `origin` says so, and so does whatever is shown of it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gallery_lib.errors import InputError
from gallery_lib.stats import bounded
from gallery_lib.system.json_files import read_json, write_json

SCHEMA = 1
RECORDED = "recorded"
_Seconds = Annotated[float, bounded(ge=0.0)]
BYTES_OF = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter, and the time when it is ready."""

    parameter: str  # its name in the model
    place: int  # among the model's parameters, from 0: DDP's first buckets follow that order
    shape: tuple[Annotated[int, bounded(gt=0)], ...]
    dtype: Annotated[str, bounded(pattern=f"^({'|'.join(BYTES_OF)})$")]
    ready_seconds: _Seconds  # since the beginning of the backward pass

    @property
    def bytes(self) -> int:
        """Return the size of the gradient in bytes."""
        return math.prod(self.shape) * BYTES_OF[self.dtype]


@dataclass(frozen=True)
class Timeline:
    """A training step, in seconds of the recorded device."""

    task: str
    origin: str  # `recorded`, or from what it was derived, and how
    settings: dict[str, Any]  # of the run: batch_size and the like
    environment: dict[str, Any]  # hardware and versions
    date: str
    steps: int  # number of recorded steps
    input_seconds: _Seconds  # waiting for the batch
    forward_seconds: _Seconds
    backward_seconds: _Seconds
    optimizer_seconds: _Seconds
    # In the order in which they are ready; parameters without a gradient are left out.
    gradients: tuple[Gradient, ...]
    schema: int = SCHEMA

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step without communication."""
        passes = self.forward_seconds + self.backward_seconds
        return self.input_seconds + passes + self.optimizer_seconds

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients together, which are averaged in each step."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def batch_size(self) -> int:
        """Return the samples in a step of one process."""
        return int(self.settings["batch_size"])

    def described(self) -> str:
        """Return the timeline in one line: task, batch, size, step time and origin."""
        return (
            f"{self.task}, batch {self.batch_size}, {self.gradient_bytes / 1e6:.1f} MB of "
            f"gradients, {self.step_seconds:.3g} s a step without communication ({self.origin})"
        )


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write the timeline as JSON, atomically; make the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dataclasses.asdict(timeline))


def read_timeline(path: Path) -> Timeline:
    """Return the timeline of a file; InputError where it is missing, damaged, or another schema."""
    try:
        return read_json(path, Timeline, schema=SCHEMA, again="Record it again.")
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist. A timeline is made by: benchmarks/network.py record",
            parameter=str(path),
        ) from None
