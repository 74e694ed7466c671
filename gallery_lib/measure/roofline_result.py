"""Roofline of a training step, as `roofline.json` has it (schema 1). Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.machine_load import MachineLoad

SCHEMA = 1
FILE = "roofline.json"
PRODUCTS, COPIES = "products", "copies"
# Group of the time that no operator has: Python, dispatch, autograd's engine.
BETWEEN = "between operators"


@dataclass(frozen=True)
class Limits:
    """Rates of this machine's matrix products, by dtype, and of a copy."""

    flops_per_second: dict[str, float]
    copy_bytes_per_second: float  # bytes read plus bytes written


@dataclass(frozen=True)
class Part:
    """A group of operators, or one operator with its shapes: its work in a step, and its time."""

    name: str
    group: str
    shapes: str
    calls: int
    bytes: int
    flops: int
    seconds: float
    limit_seconds: float  # at the rate of products or of copies, whichever takes longer
    limited_by: str | None  # PRODUCTS or COPIES; None: nothing of it was counted

    @property
    def gain(self) -> float:
        """Return the seconds between the measured time and the time at the limits."""
        return self.seconds - self.limit_seconds

    @property
    def share(self) -> float | None:
        """Return which share of the limit is reached; None for what took no time."""
        return self.limit_seconds / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Roofline:
    """Roofline of a task's step. `groups` and `operations` have the most seconds to gain first."""

    task: str
    date: str
    options: dict[str, Any]
    environment: dict[str, Any]
    limits: Limits
    step_seconds: float  # without the profiler
    profiled_seconds: float
    load: MachineLoad | None
    groups: list[Part]
    operations: list[Part]

    @property
    def seconds(self) -> float:
        """Return the seconds of a profiled step, which its groups add up to."""
        return sum(group.seconds for group in self.groups)

    @property
    def limit_seconds(self) -> float:
        """Return the seconds that the step would take at the limits."""
        return sum(group.limit_seconds for group in self.groups)


def groups(parts: Iterable[Part]) -> list[Part]:
    """Return the groups of these operations, the most seconds to gain first.

    A group's time at the limits is the sum over its operations: one that copies cannot use the time
    that another spends on products.
    """
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        by_name.setdefault(part.group, []).append(part)
    return sorted((summed(name, own) for name, own in by_name.items()), key=lambda p: -p.gain)


def summed(name: str, parts: Sequence[Part]) -> Part:
    """Return parts as one, limited by what limits most of its seconds at the limits."""
    limited = {
        by: sum(part.limit_seconds for part in parts if part.limited_by == by)
        for by in (PRODUCTS, COPIES)
    }
    larger = max(limited, key=limited.__getitem__)
    return Part(
        name=name,
        group=name,
        shapes="",
        calls=sum(part.calls for part in parts),
        bytes=sum(part.bytes for part in parts),
        flops=sum(part.flops for part in parts),
        seconds=sum(part.seconds for part in parts),
        limit_seconds=sum(limited.values()),
        limited_by=larger if limited[larger] else None,
    )


def write_roofline(path: Path, roofline: Roofline) -> None:
    """Write the roofline as JSON, atomically."""
    write_json(path, {"schema": SCHEMA, **dataclasses.asdict(roofline)})


def read_roofline(path: Path) -> Roofline:
    """Return a roofline from its file, which exists; InputError for what is no roofline."""
    return read_json(path, Roofline, schema=SCHEMA, again="Delete it, and measure again.")
