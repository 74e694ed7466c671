"""Changes between two batches: regressions beyond the interval are marked, noise is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusal import check_refused_command

from gallery_lib import stats
from gallery_lib.cli.main import main
from gallery_lib.notebooks.batch.changes import Batch, Change, changes, read_batch, text

SETS = Path(__file__).parent / "sets"
"""Two result sets in the shape that benchmarks/gallery.py writes.

Their figures are made up, and say so.
"""


def side(
    ratio: float,
    *,
    width: float = 0.03,
    seconds: float = 100.0,
    status: str = "passed",
    parity: bool = True,
) -> dict[str, Any]:
    speedup = (
        {"ratio": ratio, "low": ratio * (1 - width), "high": ratio * (1 + width)}
        if parity
        else None
    )
    verdict = "faster" if parity else "not comparable"
    comparison = {
        "processes": 1,
        "amp_level": "O0",
        "verdict": verdict,
        "speedup": speedup,
        "parity_passed": parity,
    }
    return {
        "status": status,
        "seconds": seconds,
        "parameters": {},
        "comparisons": [comparison] if status == "passed" else [],
    }


def marks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [change.mark for change in changes(Batch({"x": before}, {}), Batch({"x": after}, {}))]


def test_noise_within_the_intervals_is_not_marked() -> None:
    assert marks(side(1.50), side(1.47, seconds=240.0)) == ["", ""]
    assert marks(side(1.50), side(1.53)) == ["", ""]


def test_a_drop_and_a_gain_beyond_the_intervals_are_marked() -> None:
    assert marks(side(1.50), side(1.40)) == ["", "regression: a smaller speed-up"]
    assert marks(side(1.40), side(1.50)) == ["", "improvement"]


def test_wide_intervals_hide_the_same_drop() -> None:
    assert marks(side(1.50, width=0.2), side(1.40, width=0.2)) == ["", ""]


def test_the_change_of_a_ratio_has_both_errors_in_its_interval() -> None:
    before, after = stats.Ratio(2.0, 1.8, 2.2), stats.Ratio(1.0, 0.97, 1.03)
    change = stats.change_of_ratio(before, after)
    assert change.ratio == 0.5
    assert change.low == pytest.approx(0.5 * 0.9048, rel=0.01)  # ≈ exp(−hypot(ln 1.1, ln 1/0.97))
    assert change.high == pytest.approx(0.5 * 1.1154, rel=0.01)
    assert stats.change_of_ratio(before, before).verdict == "no measurable difference"


def test_a_notebook_that_no_longer_passes_and_one_that_does_again() -> None:
    assert marks(side(1.5), side(1.5, status="timeout")) == ["regression: timeout"]
    assert marks(side(1.5, status="failed"), side(1.5)) == ["improvement"]
    assert marks(side(1.5, status="failed"), side(1.5, status="timeout")) == [""]


def test_lost_parity_is_a_regression_whatever_the_speed() -> None:
    assert marks(side(1.5), side(1.5, parity=False)) == ["", "regression: no parity any more"]
    assert marks(side(1.5, parity=False), side(1.5)) == ["", "improvement"]
    assert marks(side(1.5, parity=False), side(1.5, parity=False)) == ["", ""]


def test_notebooks_and_comparisons_of_one_side_only_are_shown_and_not_judged() -> None:
    found = changes(Batch({"gone": side(1.5)}, {}), Batch({"new": side(1.5)}, {}))
    assert found == [
        Change("gone", "passed, 1 min 40 s", "absent", "", ""),
        Change("new", "absent", "passed, 1 min 40 s", "", ""),
    ]


def test_speedups_of_other_parameters_are_not_judged() -> None:
    assert marks(side(1.5), {**side(1.2), "parameters": {"profile": "full"}}) == [
        "",
        "not judged: other parameters",
    ]


def test_another_machine_is_said() -> None:
    here, there = {"cpu": "A", "cores": 2, "torch": "2"}, {"cpu": "A", "cores": 8, "torch": "2"}
    assert "Not measured under the same conditions (cores: 2 → 8)." in text(
        Batch({}, here), Batch({}, there)
    )
    assert "same conditions" not in text(Batch({}, here), Batch({}, here))


def test_of_two_committed_result_sets_the_planted_regression_is_marked_and_the_noise_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", str(SETS / "before.json"), str(SETS / "after.json")]) == 1
    shown = capsys.readouterr().out
    assert "1 regression(s) beyond the intervals" in shown
    (number,) = [
        number
        for number, line in enumerate(shown.splitlines())
        if "regression: a smaller speed-up" in line
    ]
    above, line = shown.splitlines()[number - 1 : number + 1]
    assert (
        above.startswith("resnet50")
        and "1 process(es), O0" in line
        and "0.83× (0.80 to 0.88)" in line
    )
    assert "improvement" not in shown


def test_without_the_planted_regression_nothing_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = json.loads((SETS / "after.json").read_text())
    noisy["notebooks"]["resnet50"]["comparisons"][0]["speedup"] = {
        "ratio": 1.47,
        "low": 1.42,
        "high": 1.52,
    }
    (tmp_path / "noisy.json").write_text(json.dumps(noisy))
    assert main(["compare", str(SETS / "before.json"), str(tmp_path / "noisy.json")]) == 0
    assert "no regression beyond the intervals" in capsys.readouterr().out


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
    found = {
        name: entry["status"] for name, entry in read_batch(tmp_path / "x.json").notebooks.items()
    }
    assert found == {"alexnet": "failed", "resnet50": "passed", "tts_angular": "passed"}
