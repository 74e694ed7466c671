"""What changed between two batches: regressions beyond the interval are marked, noise is not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gallery_lib import stats
from gallery_lib.batch.changes import Batch, Change, changes, read_batch, text
from gallery_lib.cli import main


def side(ratio: float, *, width: float = 0.03, seconds: float = 100.0, status: str = "passed", parity: bool = True) -> dict[str, Any]:
    speedup = {"ratio": ratio, "low": ratio * (1 - width), "high": ratio * (1 + width)} if parity else None
    verdict = "faster" if parity else "not comparable"
    comparison = {"processes": 1, "amp_level": "O0", "verdict": verdict, "speedup": speedup, "parity_passed": parity}
    return {"status": status, "seconds": seconds, "parameters": {}, "comparisons": [comparison] if status == "passed" else []}


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
    assert found == [Change("gone", "passed, 1 min 40 s", "absent", "", ""), Change("new", "absent", "passed, 1 min 40 s", "", "")]


def test_speedups_of_other_parameters_are_not_judged() -> None:
    assert marks(side(1.5), {**side(1.2), "parameters": {"profile": "full"}}) == ["", "not judged: other parameters"]


def test_another_machine_is_said() -> None:
    here, there = {"cpu": "A", "cores": 2, "torch": "2"}, {"cpu": "A", "cores": 8, "torch": "2"}
    assert "Not measured under the same conditions (cores: 2 → 8)." in text(Batch({}, here), Batch({}, there))
    assert "same conditions" not in text(Batch({}, here), Batch({}, here))


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A result set as benchmarks/gallery.py writes it, which is committed in benchmarks/results/."""
    notebooks = {}
    for name, ratio in (("alexnet", 1.2), ("resnet50", 1.5)):
        values = side(ratio)
        notebooks[name] = {"seconds": 100.0, "problem": None, "comparisons": values["comparisons"], "date": "2026-11-21"}
    path = tmp_path / "gallery-before.json"
    path.write_text(json.dumps({"date": "2026-11-21", "environment": {}, "notebooks": notebooks}))
    return path


def test_the_command_marks_a_planted_regression_in_committed_results_and_not_the_noise(
    committed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json.loads(committed.read_text())
    for file, factors in (("noisy", {"alexnet": 0.98, "resnet50": 1.01}), ("planted", {"alexnet": 0.98, "resnet50": 0.85})):
        content = copy.deepcopy(values)
        for name, factor in factors.items():
            speedup = content["notebooks"][name]["comparisons"][0]["speedup"]
            speedup.update({key: value * factor for key, value in speedup.items()})
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    assert main(["compare", str(committed), str(tmp_path / "noisy.json")]) == 0
    assert "no regression beyond the intervals" in capsys.readouterr().out
    assert main(["compare", str(committed), str(tmp_path / "planted.json")]) == 1
    shown = capsys.readouterr().out
    assert "1 regression(s) beyond the intervals" in shown
    (line,) = [line for line in shown.splitlines() if "regression: a smaller speed-up" in line]
    assert "1.50× (1.46 to 1.54)" in line and "0.85×" in line


def test_a_file_that_holds_no_batch_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert main(["compare", str(tmp_path / "x.json"), str(tmp_path / "x.json")]) == 2
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "holds no batch of notebooks" in errors and "does not exist" in errors


def test_a_problem_in_a_benchmarks_file_counts_as_failed(committed: Path) -> None:
    values = json.loads(committed.read_text())
    values["notebooks"]["alexnet"]["problem"] = "ValueError"
    committed.write_text(json.dumps(values))
    assert {name: entry["status"] for name, entry in read_batch(committed).notebooks.items()} == {"alexnet": "failed", "resnet50": "passed"}
