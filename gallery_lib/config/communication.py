"""Options of the measurements of communication (measure/communication/, measure/replay/)."""

from __future__ import annotations

from dataclasses import dataclass

from gallery_lib.config.options import option


@dataclass(frozen=True)
class WaysConfig:
    """Options of a measurement in which strategies of averaging gradients take turns."""

    width: int = option(512, "width of the four layers that are trained", unit="units", minimum=16)
    rounds: int = option(
        4, "turns that each way gets; the intervals come from these", unit="turns", minimum=4
    )
    block_steps: int = option(3, "counted steps in one turn", unit="steps", minimum=1)
    confidence: float = option(
        0.99, "confidence level of the intervals", minimum=0.5, maximum=0.9999
    )
    out: str | None = option(None, "file for the figures, as JSON")


@dataclass(frozen=True)
class ConvergenceConfig:
    """Options of the convergence check, which trains with every wire format."""

    digits: bool = option(
        True, "learn scikit-learn's digits, with parameters in common and in mixed units"
    )
    epochs: int = option(8, "passes over the digits", unit="epochs", minimum=1)
    seeds: int = option(4, "how often, each time from other weights", unit="seeds", minimum=2)
    task: str | None = option(
        None, "a task of the gallery whose loss is compared as well; default: none"
    )
    task_steps: int = option(
        16, "steps of it; the loss is the mean of the last quarter", unit="steps", minimum=4
    )
    batch_size: int | None = option(
        None,
        "samples a process of it; default: the task's quick setting",
        unit="samples",
        minimum=1,
    )
    image_size: int | None = option(
        None, "height of its images; default: the task's quick setting", unit="pixels", minimum=1
    )
    sequence_length: int | None = option(
        None, "length of its sequences; default: the task's quick setting", minimum=1
    )
    out: str | None = option(None, "file for the figures, as JSON")


@dataclass(frozen=True)
class RecordConfig:
    """Options of recording a timeline (see measure/replay/)."""

    steps: int = option(
        5,
        "steps that are recorded, after a warm-up; times are medians over them",
        unit="steps",
        minimum=3,
    )
    times: float = option(
        1.0,
        "multiply all times, for a device that is not recorded; the file says that it is derived",
        minimum=1e-6,
    )
    reason: str = option(
        "", "with times: what device that is meant to be, and where the factor is from"
    )


@dataclass(frozen=True)
class ReplayConfig:
    """Options of replaying timelines, and the strategies of averaging gradients that take part."""

    stretch: float = option(
        1.0,
        "waits are multiplied by it, the rate of links divided, and step times divided again",
        unit="",
        minimum=1.0,
        maximum=1000.0,
    )
    wires: str = option(
        "exact",
        "wire formats, with commas between; each is tried in all ways that DDP's gradients can go",
    )
    only: str | None = option(
        None, "only these ways, with semicolons between, beside DDP's own; default: all"
    )
    rounds: int = option(6, "turns that each way gets", unit="turns", minimum=4)
    block_steps: int = option(4, "counted steps in a turn", unit="steps", minimum=1)
