"""Options of the measurements of communication (measure/communication/, measure/replay/)."""

from __future__ import annotations

from dataclasses import dataclass

from gallery_lib.config.options import option


@dataclass(frozen=True)
class WaysConfig:
    """Options of a measurement in which strategies of averaging gradients take turns."""

    width: int = option(
        512,
        "Width of the four layers that are trained. Wider ones send more.",
        unit="units",
        minimum=16,
    )
    rounds: int = option(
        4,
        "Turns of each strategy; the intervals come from these. More turns take longer.",
        unit="turns",
        minimum=4,
    )
    block_steps: int = option(3, "Counted steps in one turn.", unit="steps", minimum=1)
    confidence: float = option(
        0.99, "Confidence level of the intervals.", minimum=0.5, maximum=0.9999
    )
    out: str | None = option(None, "File for the figures, as JSON.")


@dataclass(frozen=True)
class ConvergenceConfig:
    """Options of the convergence check, which trains with every wire format."""

    digits: bool = option(
        True, "Learn scikit-learn's digits, with parameters in common and in mixed units."
    )
    epochs: int = option(8, "Passes over the digits.", unit="epochs", minimum=1)
    seeds: int = option(
        4,
        "How often, each time from other weights. More tell smaller differences apart.",
        unit="seeds",
        minimum=2,
    )
    task: str | None = option(
        None, "Task of the gallery whose loss is compared as well. Takes minutes. Default: none."
    )
    task_steps: int = option(
        16, "Steps of the task. Its loss is the mean of the last quarter.", unit="steps", minimum=4
    )
    batch_size: int | None = option(
        None,
        "Samples of the task per process. Default: the task's quick setting.",
        unit="samples",
        minimum=1,
    )
    image_size: int | None = option(
        None,
        "Height of the task's images. Default: the task's quick setting.",
        unit="pixels",
        minimum=1,
    )
    sequence_length: int | None = option(
        None, "Length of the task's sequences. Default: the task's quick setting.", minimum=1
    )
    out: str | None = option(None, "File for the figures, as JSON.")


@dataclass(frozen=True)
class RecordConfig:
    """Options of recording a timeline (see measure/replay/)."""

    steps: int = option(
        5,
        "Steps that are recorded, after a warm-up. Times are medians over them.",
        unit="steps",
        minimum=3,
    )


@dataclass(frozen=True)
class ReplayConfig:
    """Options of replaying timelines, and the strategies of averaging gradients that take part."""

    stretch: float = option(
        1.0,
        "Multiply waits by it, divide the rate of links by it, and divide step times "
        "again. Raise it where this machine is too slow for the rate.",
        unit="",
        minimum=1.0,
        maximum=1000.0,
    )
    wires: str = option(
        "exact",
        "Wire formats, with commas between. Each is tried in all strategies that DDP's "
        "gradients can go.",
    )
    only: str | None = option(
        None, "Only these strategies, with semicolons between, beside DDP's own. Default: all."
    )
    rounds: int = option(
        6, "Turns of each strategy. More turns take longer.", unit="turns", minimum=4
    )
    block_steps: int = option(4, "Counted steps in a turn.", unit="steps", minimum=1)
