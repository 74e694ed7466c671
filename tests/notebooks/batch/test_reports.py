"""A batch's report: four forms that say the same, and what changed between two batches."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from refusal import check_refused_command, refused

from gallery_lib.cli.main import main
from gallery_lib.notebooks import reports
from gallery_lib.notebooks.reports import Change, Compared, Record, Report, changes, read_report
from gallery_lib.stats import Ratio

MEASURED = Compared(1, "O0", "cpu", "faster", Ratio(1.5, 1.4, 1.6), True, 30)
WRONG = dataclasses.replace(MEASURED, processes=2, verdict="not comparable", speedup=None)
DATE = "2026-11-21T12:00:00+0000"
SMALLER, NO_PARITY = "regression: a smaller speed-up", "regression: no parity any more"


def record(status: Any = "passed", reason: str | None = None, **values: Any) -> Record:
    about = (1, False, {"seed": 3}, "abc", "x", 4, 5, ["<last> & words"])
    return dataclasses.replace(Record(status, reason, 65.0, DATE, *about), **values)


REPORT = Report(
    command="gallery run --profile quick",
    began=DATE,
    ended="2026-11-21T12:10:00+0000",
    interrupted_by="SIGTERM",
    seconds=600.0,
    options={"deadline": 60.0},
    machine={
        **{"python": "3.11", "torch": "2.15", "cpu": "A CPU", "cores": 2, "isa": ["avx2"]},
        "memory_bytes": 2**34,
    },
    notebooks={
        "alexnet": record(comparisons=[MEASURED, WRONG]),
        "bert": record("failed", "ValueError: 17 is <wrong>"),
        "bart": record("failed", "ValueError: 18 is <wrong>"),
        "unet": record("kernel died", "the kernel was gone, in cell 2 of 5, `x`"),
        "vgg": record("timeout", "still running"),
        "vit": record("not run", "interrupted by SIGTERM", date=None, folder=None),
        "kept": record(kept=True, attempts=2),
    },
)


def batch(notebooks: dict[str, Record], **machine: Any) -> Report:
    return dataclasses.replace(REPORT, notebooks=notebooks, machine={**REPORT.machine, **machine})


def test_the_text_has_every_status_and_each_failure() -> None:
    text = reports.text(REPORT, Path("somewhere"))
    totals = "2 of 7 passed; 2 failed, 1 timeout, 1 kernel died, 1 not run, interrupted by SIGTERM"
    assert f"{totals}, in 10 min 0 s." in text
    assert "bert: failed\n  ValueError: 17 is <wrong>\n  | <last> & words" in text
    assert "1p O0 1.50× (1.40 to 1.60); 2p O0 not comparable" in text
    assert "passed (kept, attempt 2)" in text


def test_the_json_comes_back_as_it_was_and_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports.write(tmp_path, REPORT)
    assert read_report(tmp_path) == REPORT
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == reports.text(REPORT, tmp_path) + "\n"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".xml", ".html"}
    for text in ("{", '{"schema": 99}', None):
        file = tmp_path / "report.json"
        file.write_text(text) if text else file.unlink()
        with refused("schema" if text and "schema" in text else file):
            read_report(tmp_path)


def test_junit_has_a_case_per_notebook_with_its_reason_and_log() -> None:
    (suite,) = ElementTree.fromstring(reports.junit(REPORT))
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["7", "2", "2", "1"]
    kinds = {case.get("name"): [element.tag for element in case] for case in suite}
    expected = {"alexnet": [], "bert": ["failure"], "vgg": ["error"], "vit": ["skipped"]}
    assert expected.items() <= kinds.items()
    failure = suite.find("./testcase[@name='bert']/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("ValueError: 17 is <wrong>", "<last> & words")


def test_a_notebooks_name_reaches_no_file_as_an_escape_sequence() -> None:
    name, shown = "\x1b]0;title\x07 \ufffe \udcff.ipynb", r"\x1b]0;title\x07 \ufffe \udcff.ipynb"
    renamed = batch({name: REPORT.notebooks["bert"]})
    (case,) = ElementTree.fromstring(reports.junit(renamed)).iter("testcase")
    assert case.get("name") == shown and shown in reports.html(renamed)


def test_the_page_stands_alone_and_escapes_what_notebooks_print() -> None:
    text = reports.html(REPORT)
    opened, closed = (Counter(re.findall(tag, text)) for tag in (r"<(\w+)", r"</(\w+)"))
    assert not {"script", "link", "img", "iframe"} & set(opened)
    assert set(opened - closed) <= {"meta", "br"} and not closed - opened
    assert "url(" not in text and "http" not in text and "<wrong>" not in text
    for part in ("2 of 7 passed", "&lt;last&gt; &amp; words", "1.50× (1.40 to 1.60)", "seed=3"):
        assert part in text
    fine = batch({"alexnet": REPORT.notebooks["alexnet"]})
    assert fine.passed and "What went wrong" not in reports.html(fine)


def side(ratio: float, *, width: float = 0.03, parity: bool = True, **values: Any) -> Record:
    interval = Ratio(ratio, ratio * (1 - width), ratio * (1 + width)) if parity else None
    one = dataclasses.replace(MEASURED, speedup=interval, parity_passed=parity)
    return record(comparisons=[one], **values)


FAILED, TIMEOUT = record("failed"), record("timeout")


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        (side(1.50), side(1.47), ["", ""]),
        (side(1.50), side(1.53), ["", ""]),
        (side(1.50), side(1.40), ["", SMALLER]),
        (side(1.40), side(1.50), ["", "improvement"]),
        (side(1.50, width=0.2), side(1.40, width=0.2), ["", ""]),
        (side(1.5), TIMEOUT, ["regression: timeout"]),
        (FAILED, side(1.5), ["improvement"]),
        (FAILED, TIMEOUT, [""]),
        (side(1.5), side(1.5, parity=False), ["", NO_PARITY]),
        (side(1.5, parity=False), side(1.5), ["", "improvement"]),
        (side(1.5, parity=False), side(1.5, parity=False), ["", ""]),
        (
            side(1.5),
            side(1.2, parameters={"seed": 1}),
            ["", "not judged: other parameters"],
        ),
    ],
)
def test_what_is_beyond_the_intervals_is_marked_and_noise_is_not(
    before: Record, after: Record, marks: list[str]
) -> None:
    found = changes(batch({"x": before}), batch({"x": after}))
    assert [change.mark for change in found] == marks


def test_notebooks_of_one_side_and_another_machine_are_shown_and_not_judged() -> None:
    found = changes(batch({"gone": side(1.5)}), batch({"new": side(1.5)}))
    assert found == [
        Change("gone", "passed, 1 min 5 s", "absent"),
        Change("new", "absent", "passed, 1 min 5 s"),
    ]
    said = reports.text_of_changes(batch({}), batch({}, cores=8))
    assert "Not measured under the same conditions (cores: 2 → 8)." in said
    assert "same conditions" not in reports.text_of_changes(batch({}), batch({}))


def test_of_two_batches_the_planted_regression_is_marked_and_the_noise_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ratio in (("before", 1.5), ("after", 1.25)):
        notebooks = {"alexnet": side(2 + ratio / 100), "resnet50": side(ratio)}
        (tmp_path / name).mkdir()
        reports.write(tmp_path / name, batch(notebooks))
    assert main(["compare", str(tmp_path / "before"), str(tmp_path / "after")]) == 1
    shown = capsys.readouterr().out
    assert "1 regression(s) beyond the intervals" in shown and "improvement" not in shown
    lines = shown.splitlines()
    place = next(number for number, line in enumerate(lines) if SMALLER in line)
    assert lines[place - 1].startswith("resnet50")
    assert "1 process(es), O0" in lines[place] and "0.83× (0.80 to 0.87)" in lines[place]
    code = main(["compare", str(tmp_path), str(tmp_path)])
    missing = (tmp_path / "report.json", "does not exist")
    check_refused_command(code, capsys.readouterr().err, *missing)
