"""Changes between two batches: regressions beyond the interval are marked, noise is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refusal import check_refused_command

from gallery_lib.cli.main import main
from gallery_lib.notebooks.reports import (
    Change,
    Compared,
    Record,
    Report,
    changes,
    text_of_changes,
    write,
)
from gallery_lib.stats import Ratio

SMALLER, NO_PARITY = "regression: a smaller speed-up", "regression: no parity any more"
MACHINE = {
    "python": "3.11",
    "torch": "2.15",
    "cpu": "A CPU",
    "cores": 2,
    "isa": [],
    "memory_bytes": 1,
}


def side(
    ratio: float,
    *,
    width: float = 0.03,
    status: Any = "passed",
    parity: bool = True,
    parameters: dict[str, Any] | None = None,
) -> Record:
    interval = Ratio(ratio, ratio * (1 - width), ratio * (1 + width)) if parity else None
    verdict = "faster" if parity else "not comparable"
    compared = [Compared(1, "O0", "cpu", verdict, interval, parity, None)]
    ran = (None, 100.0, "2026-01-01", 1, False, parameters or {}, "d", "x", 3, 3, [])
    return Record(status, *ran, compared if status == "passed" else [])


def batch(notebooks: dict[str, Record], **machine: Any) -> Report:
    when = ("2026-01-01", "2026-01-01", None, 9.0)
    return Report("gallery run", *when, {}, {**MACHINE, **machine}, notebooks)


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        (side(1.50), side(1.47), ["", ""]),
        (side(1.50), side(1.53), ["", ""]),
        (side(1.50), side(1.40), ["", SMALLER]),
        (side(1.40), side(1.50), ["", "improvement"]),
        (side(1.50, width=0.2), side(1.40, width=0.2), ["", ""]),
        (side(1.5), side(1.5, status="timeout"), ["regression: timeout"]),
        (side(1.5, status="failed"), side(1.5), ["improvement"]),
        (side(1.5, status="failed"), side(1.5, status="timeout"), [""]),
        (side(1.5), side(1.5, parity=False), ["", NO_PARITY]),
        (side(1.5, parity=False), side(1.5), ["", "improvement"]),
        (side(1.5, parity=False), side(1.5, parity=False), ["", ""]),
        (side(1.5), side(1.2, parameters={"seed": 1}), ["", "not judged: other parameters"]),
    ],
)
def test_what_is_beyond_the_intervals_is_marked_and_noise_is_not(
    before: Record, after: Record, marks: list[str]
) -> None:
    found = changes(batch({"x": before}), batch({"x": after}))
    assert [change.mark for change in found] == marks


def test_notebooks_of_one_side_only_are_shown_and_not_judged() -> None:
    found = changes(batch({"gone": side(1.5)}), batch({"new": side(1.5)}))
    assert found == [
        Change("gone", "passed, 1 min 40 s", "absent"),
        Change("new", "absent", "passed, 1 min 40 s"),
    ]


def test_another_machine_is_said() -> None:
    said = text_of_changes(batch({}), batch({}, cores=8))
    assert "Not measured under the same conditions (cores: 2 → 8)." in said
    assert "same conditions" not in text_of_changes(batch({}), batch({}))


def test_of_two_batches_the_planted_regression_is_marked_and_the_noise_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ratio in (("before", 1.5), ("after", 1.25)):
        notebooks = {"alexnet": side(2 + ratio / 100), "resnet50": side(ratio)}
        (tmp_path / name).mkdir()
        write(tmp_path / name, batch(notebooks))
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    shown = capsys.readouterr().out
    assert "1 regression(s) beyond the intervals" in shown and "improvement" not in shown
    lines = shown.splitlines()
    place = next(number for number, line in enumerate(lines) if SMALLER in line)
    assert lines[place - 1].startswith("resnet50")
    assert "1 process(es), O0" in lines[place] and "0.83× (0.80 to 0.87)" in lines[place]
    code = main(["compare", str(tmp_path), str(tmp_path)])
    refused = (tmp_path / "report.json", "does not exist")
    check_refused_command(code, capsys.readouterr().err, *refused)
