"""Files of others: one change in a file is shown, or refused in a line; and nothing in it acts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_comparison
import pytest
from made_roofline import made_roofline

from gallery_lib.cli.main import launch_single_task, main
from gallery_lib.measure.comparison.result import Comparison, Parity
from gallery_lib.notebooks.reports import SCHEMA, Compared, Record, Report
from gallery_lib.system.machine_load import MachineLoad

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "results"
OTHER_VALUES = ("a text", 5, -3, 0, 0.5, math.nan, 10**400, True, None, [], [3], {"a": {}})


def _changes(value: Any) -> Iterator[Any]:
    """Yield the value with each single change; of a list's entries, which are alike, the first."""
    yield from OTHER_VALUES
    if isinstance(value, dict):
        yield {**value, "another": 1}
        for name in value:
            yield {other: kept for other, kept in value.items() if other != name}
            for changed in _changes(value[name]):
                yield {**value, name: changed}
    elif isinstance(value, list) and value:
        yield value[1:]
        for changed in _changes(value[0]):
            yield [changed, *value[1:]]


ACTS = "\x1b[31mred\x1b]0;title\x07\x9b1A"
"""Words that turn red, rename the window and move the cursor."""


def _planted(value: Any) -> Any:
    """Return the value with ACTS in each text, but for those that say what the others are."""
    if isinstance(value, dict):
        return {name: v if name in KINDS else _planted(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_planted(entry) for entry in value]
    return value + ACTS if isinstance(value, str) else value


KINDS = ("kind", "status", "ratios", "worst")


def _comparison() -> Comparison:
    """Return a comparison that has all that one can have."""
    load = MachineLoad(0.1, 0.5)
    whole = made_comparison.changed(
        made_comparison.comparison(made_comparison.FASTER, 10),
        config={"amp_level": "O1", "amp_dtype": "auto"},
        data={"input": "48×48 pixels", "classes": 10, "outputs": 1000, "notices": ["a notice"]},
        interruptions=[{"step": 3, "lost_steps": 1, "processes": 2, "processes_before": 2}],
        load=load,
        samples_per_second={"sustained": 3.0},
        sustained={"step_seconds": 2.0, "input_seconds": 1.9, "steady_input_seconds": 0.1},
        techniques={"compiler": "inductor"},
    )
    (check,) = whole.parity.checks
    check = dataclasses.replace(check, passed=False, name="all losses", worst=None, baselines=0.1)
    return dataclasses.replace(whole, parity=Parity(False, [check]), confidence=0.99, load=load)


def _report() -> Report:
    compared = [Compared.of(_comparison())]
    parts = ("failed", "a reason", 3.0, "2026-01-01", 2, True, {"steps": 3}, "d", "r", 3, 4, ["…"])
    notebooks = {"resnet50": Record(*parts, compared), "vgg16": Record(*parts)}  # type: ignore[arg-type]
    return Report("gallery run", "2026-01-01", None, "SIGINT", 9.0, {}, {"cpu": "A"}, notebooks)


def _whole(name: str) -> Any:
    """Return the content of a file of this name."""
    if name == "bench.json":
        bench = json.loads((PUBLISHED / "epyc-zen5-2core" / "bench-small-4.json").read_text())
        task = bench["tasks"]["resnet18"]
        rows = {name: task["rows"][name] for name in (next(iter(task["rows"])), "ours")}
        return {**bench, "tasks": {"resnet18": {**task, "rows": rows}}}
    made: Any = {"roofline.json": made_roofline, "report.json": _report}.get(name, _comparison)()
    if name == "results.json":
        made = made.candidate
    return {
        "schema": SCHEMA if name == "report.json" else 1,
        **json.loads(json.dumps(dataclasses.asdict(made))),
    }


def _shown(path: Path, content: Any) -> int:
    """Write the file and return the exit code of the commands that show it."""
    path.write_text(json.dumps(content))
    code = main(["show", str(path.parent)])
    if code == 0 and path.name == "report.json":
        return main(["compare", str(path.parent), str(path.parent)])
    return code


NAMES = ("results.json", "comparison.json", "bench.json", "roofline.json", "report.json")


@pytest.mark.filterwarnings("error::RuntimeWarning")  # the logarithm of a ratio of 0
@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_one_change_is_shown_or_refused_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = tmp_path / name, _whole(name)
    assert _shown(path, whole) in (0, 1)
    codes = []
    for changed in _changes(whole):
        capsys.readouterr()
        codes.append(_shown(path, changed))  # a traceback would end the test
        error = capsys.readouterr().err
        is_a_line = error.startswith("error: ") and error.count("\n") == 1
        assert codes[-1] in (0, 1) or (codes[-1] == 2 and is_a_line), error
    assert codes.count(2) > 20


@pytest.mark.parametrize("name", NAMES)
def test_escape_sequences_in_a_file_reach_no_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _shown(tmp_path / name, _planted(_whole(name))) in (0, 1)
    said = capsys.readouterr().out
    assert "red\\x1b]0;title\\x07\\x9b1A" in said
    assert not set(said) & set("\x1b\x07\x9b")


def test_escape_sequences_of_a_task_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.py"
    file.write_text(f"raise ValueError({ACTS!r})")
    assert launch_single_task([f"--model={file}:TASK", "--dry_run"]) == 2
    said = capsys.readouterr().err
    assert "red\\x1b]0;title" in said and not set(said) & set("\x1b\x07\x9b")
