"""One report in four forms that say the same: text, JSON, JUnit XML and HTML."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from refusal import refused

from gallery_lib.cli.main import main
from gallery_lib.notebooks import reports
from gallery_lib.notebooks.reports import Compared, Record, Report, read_report
from gallery_lib.stats import Ratio

MEASURED = Compared(1, "O0", "cpu", "faster", Ratio(1.5, 1.4, 1.6), True, 30)
WRONG = dataclasses.replace(MEASURED, processes=2, verdict="not comparable", speedup=None)
DATE = "2026-11-21T12:00:00+0000"
MACHINE = {"python": "3.11", "torch": "2.15", "cpu": "A CPU", "cores": 2, "isa": ["avx2"]}


def record(status: str, reason: str | None = None, **values: object) -> Record:
    about = (1, False, {"seed": 3}, "abc", "x", 4, 5, ["<last> & words"])
    ran = Record(status, reason, 65.0, DATE, *about)  # type: ignore[arg-type]
    return dataclasses.replace(ran, **values)  # type: ignore[arg-type]


@pytest.fixture
def report() -> Report:
    return Report(
        command="gallery run --profile quick",
        began=DATE,
        ended="2026-11-21T12:10:00+0000",
        interrupted_by="SIGTERM",
        seconds=600.0,
        options={"deadline": 60.0},
        machine={**MACHINE, "memory_bytes": 2**34},
        notebooks={
            "alexnet": record("passed", comparisons=[MEASURED, WRONG]),
            "bert": record("failed", "ValueError: 17 is <wrong>"),
            "bart": record("failed", "ValueError: 18 is <wrong>"),
            "unet": record("kernel died", "the kernel was gone, in cell 2 of 5, `x`"),
            "vgg": record("timeout", "still running"),
            "vit": record("not run", "interrupted by SIGTERM", date=None, folder=None),
            "kept": record("passed", kept=True, attempts=2),
        },
    )


def test_the_text_has_every_status_and_each_failure(report: Report) -> None:
    text = reports.text(report, Path("somewhere"))
    totals = "2 of 7 passed; 2 failed, 1 timeout, 1 kernel died, 1 not run, interrupted by SIGTERM"
    assert f"{totals}, in 10 min 0 s." in text
    assert "bert: failed\n  ValueError: 17 is <wrong>\n  | <last> & words" in text
    assert "1p O0 1.50× (1.40 to 1.60); 2p O0 not comparable" in text
    assert "passed (kept, attempt 2)" in text


def test_the_json_comes_back_as_it_was_and_is_shown(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports.write(tmp_path, report)
    assert read_report(tmp_path) == report
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == reports.text(report, tmp_path) + "\n"
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"report.json", "report.xml", "report.html"}
    for text in ("{", '{"schema": 99}', None):
        file = tmp_path / "report.json"
        file.write_text(text) if text else file.unlink()
        with refused("schema" if text and "schema" in text else file):
            read_report(tmp_path)


def test_junit_has_a_case_per_notebook_with_its_reason_and_log(report: Report) -> None:
    (suite,) = ElementTree.fromstring(reports.junit(report))
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["7", "2", "2", "1"]
    kinds = {case.get("name"): [element.tag for element in case] for case in suite}
    expected = {"alexnet": [], "bert": ["failure"], "vgg": ["error"], "vit": ["skipped"]}
    assert expected.items() <= kinds.items()
    failure = suite.find("./testcase[@name='bert']/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("ValueError: 17 is <wrong>", "<last> & words")


def test_a_notebooks_name_reaches_no_file_as_an_escape_sequence(report: Report) -> None:
    name, shown = "\x1b]0;title\x07 \ufffe \udcff.ipynb", r"\x1b]0;title\x07 \ufffe \udcff.ipynb"
    renamed = dataclasses.replace(report, notebooks={name: report.notebooks["bert"]})
    (case,) = ElementTree.fromstring(reports.junit(renamed)).iter("testcase")
    assert case.get("name") == shown and shown in reports.html(renamed)


class Elements(HTMLParser):
    """Parser that collects tags, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_escapes_what_notebooks_print(report: Report) -> None:
    text = reports.html(report)
    assert not Elements(text).found & {"script", "link", "img", "iframe"}
    assert "url(" not in text and "http" not in text and "<wrong>" not in text
    for part in ("2 of 7 passed", "&lt;last&gt; &amp; words", "1.50× (1.40 to 1.60)", "seed=3"):
        assert part in text
    fine = dataclasses.replace(report, notebooks={"alexnet": report.notebooks["alexnet"]})
    assert fine.passed and "What went wrong" not in reports.html(fine)
