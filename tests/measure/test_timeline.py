"""Files of timelines: what they hold, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusal import refused

from gallery_lib.measure.replay import Gradient, Timeline, read_timeline, write_timeline

GRADIENTS = (
    Gradient("head.bias", 3, (10,), "float32", 0.001),
    Gradient("head.weight", 2, (10, 64), "float32", 0.001),
    Gradient("body.weight", 0, (64, 3, 7, 7), "bfloat16", 0.004),
)
TIMELINE = Timeline(
    task="small",
    origin="recorded",
    settings={"batch_size": 8},
    environment={"device": "cpu", "torch": "2.15"},
    date="2026-11-22",
    steps=5,
    input_seconds=0.001,
    forward_seconds=0.002,
    backward_seconds=0.005,
    optimizer_seconds=0.0005,
    gradients=GRADIENTS,
)


def test_a_timeline_reads_back_as_it_was_written_and_knows_its_sums(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "small.json"
    write_timeline(path, TIMELINE)
    assert read_timeline(path) == TIMELINE
    assert TIMELINE.gradient_bytes == 10 * 4 + 640 * 4 + 64 * 147 * 2
    assert TIMELINE.step_seconds == pytest.approx(0.0085)


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda values: {**values, name: value}


@pytest.mark.parametrize(
    ("damage", "parameter", "values"),
    [
        (_with("schema", 2), "schema", ["schema 2", "reads 1"]),
        (lambda values: [values], None, ["`object`"]),
        (lambda values: values.pop("forward_seconds") and values, None, ["missing", "forward"]),
        (_with("colour", "red"), "colour", ["not known"]),
        (_with("forward_seconds", float("nan")), None, ["NaN is no finite number"]),
        (_with("forward_seconds", "long"), "forward_seconds", ["`float`"]),
    ],
)
def test_a_damaged_timeline_is_refused_with_what_is_wrong(
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], Any],
    parameter: str | None,
    values: list[str],
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(damage(json.loads(json.dumps(dataclasses.asdict(TIMELINE))))))
    with refused(parameter or path, path, *values):
        read_timeline(path)
    path.write_text('{"schema": 1, "task"')
    with refused(path, "no JSON"):
        read_timeline(path)
    path.unlink()
    with refused(path):
        read_timeline(path)
