"""Changes between two batches: regressions beyond the interval are marked, noise is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusal import check_refused_command

from gallery_lib.cli.main import main
from gallery_lib.notebooks.batch.changes import Batch, Change, changes, read_batch, text

SETS = Path(__file__).parent / "sets"
"""Two made-up result sets in the shape that benchmarks/gallery.py writes."""
SMALLER, NO_PARITY = "regression: a smaller speed-up", "regression: no parity any more"


def side(
    ratio: float, *, width: float = 0.03, status: str = "passed", parity: bool = True, **more: Any
) -> dict[str, Any]:
    interval = {"ratio": ratio, "low": ratio * (1 - width), "high": ratio * (1 + width)}
    comparison = {
        "processes": 1,
        "amp_level": "O0",
        "verdict": "faster" if parity else "not comparable",
        "speedup": interval if parity else None,
        "parity_passed": parity,
    }
    comparisons = [comparison] if status == "passed" else []
    about = {"status": status, "seconds": 100.0, "parameters": {}, "comparisons": comparisons}
    return {**about, **more}


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        (side(1.50), side(1.47, seconds=240.0), ["", ""]),
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
    before: dict[str, Any], after: dict[str, Any], marks: list[str]
) -> None:
    found = changes(Batch({"x": before}, {}), Batch({"x": after}, {}))
    assert [change.mark for change in found] == marks


def test_notebooks_of_one_side_only_are_shown_and_not_judged() -> None:
    found = changes(Batch({"gone": side(1.5)}, {}), Batch({"new": side(1.5)}, {}))
    assert found == [
        Change("gone", "passed, 1 min 40 s", "absent"),
        Change("new", "absent", "passed, 1 min 40 s"),
    ]


def test_another_machine_is_said() -> None:
    here, there = {"cpu": "A CPU", "cores": 2}, {"cpu": "A CPU", "cores": 8}
    said = text(Batch({}, here), Batch({}, there))
    assert "Not measured under the same conditions (cores: 2 → 8)." in said
    assert "same conditions" not in text(Batch({}, here), Batch({}, here))


def test_of_two_result_sets_the_planted_regression_is_marked_and_the_noise_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", str(SETS / "before.json"), str(SETS / "after.json")]) == 1
    shown = capsys.readouterr().out
    assert "1 regression(s) beyond the intervals" in shown and "improvement" not in shown
    lines = shown.splitlines()
    place = next(number for number, line in enumerate(lines) if SMALLER in line)
    assert lines[place - 1].startswith("resnet50")
    assert "1 process(es), O0" in lines[place] and "0.83× (0.80 to 0.88)" in lines[place]


def test_a_file_that_holds_no_batch_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("[]")
    for given, values in (
        (tmp_path / "x.json", ["no batch", "`object`"]),
        (tmp_path, [tmp_path / "report.json", "does not exist"]),
    ):
        code = main(["compare", str(given), str(given)])
        check_refused_command(code, capsys.readouterr().err, given, *values)


def test_a_problem_in_a_benchmarks_file_counts_as_failed(tmp_path: Path) -> None:
    values = json.loads((SETS / "before.json").read_text())
    values["notebooks"]["alexnet"]["problem"] = "ValueError"
    (tmp_path / "x.json").write_text(json.dumps(values))
    entries = read_batch(tmp_path / "x.json").notebooks.items()
    found = {name: entry["status"] for name, entry in entries}
    assert found == {"alexnet": "failed", "resnet50": "passed", "tts_angular": "passed"}
