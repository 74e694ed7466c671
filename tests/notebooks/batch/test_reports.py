"""One report in four forms that say the same: text, JSON, JUnit XML and HTML."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from refusal import refused

from gallery_lib.cli.main import main
from gallery_lib.notebooks.batch import live, reports, summary
from gallery_lib.notebooks.batch.record import Record, Report, read_report
from gallery_lib.report.folded import folded

MEASURED = {
    "processes": 1,
    "amp_level": "O0",
    "device": "cpu",
    "verdict": "faster",
    "speedup": {"ratio": 1.5, "low": 1.4, "high": 1.6},
    "parity_passed": True,
    "break_even_steps": 30,
    "metrics": {},
    "chance": {},
}


def record(status: str, reason: str | None = None, **values: object) -> Record:
    ran = Record(
        status,
        reason,
        65.0,
        "2026-11-21T12:00:00+0000",
        1,
        False,
        {"seed": 3},
        "abc",
        "x",
        4,
        5,
        ["<last> & words"],
    )  # type: ignore[arg-type]
    return dataclasses.replace(ran, **values)  # type: ignore[arg-type]


@pytest.fixture
def report() -> Report:
    return Report(
        command="gallery run --profile quick",
        began="2026-11-21T12:00:00+0000",
        ended="2026-11-21T12:10:00+0000",
        interrupted_by="SIGTERM",
        seconds=600.0,
        options={"deadline": 60.0},
        machine={
            "python": "3.11",
            "torch": "2.15",
            "cpu": "A CPU",
            "cores": 2,
            "isa": ["avx2"],
            "memory_bytes": 2**34,
        },
        notebooks={
            "alexnet": record(
                "passed",
                comparisons=[
                    MEASURED,
                    {**MEASURED, "processes": 2, "verdict": "not comparable", "speedup": None},
                ],
            ),
            "bert": record("failed", "ValueError: 17 is <wrong>"),
            "bart": record("failed", "ValueError: 18 is <wrong>"),
            "unet": record("kernel died", "the kernel was gone, in cell 2 of 5, `x`"),
            "vgg": record("timeout", "still running"),
            "vit": record(
                "not run", "interrupted by SIGTERM before its turn", date=None, folder=None
            ),
            "kept": record("passed", kept=True, attempts=2),
        },
    )


def test_the_heading_counts_what_runs_waits_and_has_ended(report: Report) -> None:
    assert (
        live.heading(["unet"], report, 65.0)
        == "1 running, 1 waiting, 2 passed, 2 failed, 1 timeout; 1 min 5 s"
    )
    assert (
        live.heading(["vit", "unet"], report, 66.0)
        == "2 running, 2 passed, 2 failed, 1 timeout; 1 min 6 s"
    )


def test_the_text_has_every_status_and_each_failure(report: Report) -> None:
    text = summary.text(report, Path("somewhere"))
    assert (
        "2 of 7 passed; 2 failed, 1 timeout, 1 kernel died, 1 not run, interrupted by SIGTERM, "
        "in 10 min 0 s." in text
    )
    assert "bert: failed\n  ValueError: 17 is <wrong>\n  | <last> & words" in text
    assert "1p O0 1.50× (1.40 to 1.60); 2p O0 not comparable" in text
    assert "passed (kept, attempt 2)" in text
    assert "bart: failed\n  ValueError: 18" in text


def test_gallery_show_prints_the_table_of_a_batch(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports.write(tmp_path, report)
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == summary.text(report, tmp_path) + "\n"


def test_the_json_comes_back_as_it_was(report: Report, tmp_path: Path) -> None:
    reports.write(tmp_path, report)
    assert read_report(tmp_path) == report
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.json",
        "report.xml",
        "report.html",
    }


@pytest.mark.parametrize(
    ("text", "parameter", "values"),
    [(None, "file", []), ("{", "file", ["no JSON"]), ('{"schema": 99}', "schema", [99])],
)
def test_a_report_that_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, parameter: str, values: list[object]
) -> None:
    if text:
        (tmp_path / "report.json").write_text(text)
    with refused(tmp_path / "report.json" if parameter == "file" else parameter, *values):
        read_report(tmp_path)


def test_a_notebooks_name_reaches_no_file_as_an_escape_sequence(report: Report) -> None:
    name = "\x1b]0;title\x07 \ufffe \udcff.ipynb"
    (record, *_) = report.notebooks.values()
    renamed = dataclasses.replace(report, notebooks={name: record})
    (case,) = ElementTree.fromstring(reports.junit(renamed)).iter("testcase")
    assert case.get("name") == r"\x1b]0;title\x07 \ufffe \udcff.ipynb"
    assert str(case.get("name")) in reports.html(renamed)


def test_junit_has_a_case_per_notebook_with_its_reason_and_log(report: Report) -> None:
    (suite,) = ElementTree.fromstring(reports.junit(report))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7",
        "failures": "2",
        "errors": "2",
        "skipped": "1",
    }
    kinds = {case.get("name"): [element.tag for element in case] for case in suite}
    assert (
        kinds["alexnet"] == []
        and kinds["bert"] == ["failure"]
        and kinds["vgg"] == ["error"]
        and kinds["vit"] == ["skipped"]
    )
    failure = suite.find("./testcase[@name='bert']/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("ValueError: 17 is <wrong>", "<last> & words")


class Elements(HTMLParser):
    """Parser that collects (tag, attributes), and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_suits_a_phone_and_the_dark(report: Report) -> None:
    text = reports.html(report)
    elements = Elements(text).found
    tags = {tag for tag, _ in elements}
    assert (
        not tags & {"script", "link", "img", "iframe"} and "url(" not in text and "http" not in text
    )
    assert (
        "meta",
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
    ) in elements
    assert "prefers-color-scheme: dark" in text
    assert all("data-label" in attributes for tag, attributes in elements if tag == "td")


def test_the_page_says_what_the_text_says_and_escapes_what_notebooks_print(report: Report) -> None:
    text = reports.html(report)
    for part in (
        "2 of 7 passed",
        "ValueError: 18 is &lt;wrong&gt;",
        "&lt;last&gt; &amp; words",
        "1.50× (1.40 to 1.60)",
        "seed=3",
    ):
        assert part in text
    assert "<wrong>" not in text


def test_a_batch_that_all_passed_shows_no_failures(report: Report, tmp_path: Path) -> None:
    fine = dataclasses.replace(
        report, notebooks={"alexnet": report.notebooks["alexnet"]}, interrupted_by=None
    )
    assert fine.passed
    assert "What went wrong" not in reports.html(fine)
    assert summary.text(fine, tmp_path) == "alexnet: passed, 4 of 5 code cells in 1 min 5 s"


def test_details_stay_folded_on_the_page_of_a_notebook(tmp_path):
    output = nbformat.v4.new_output(
        "display_data", {"text/markdown": folded("Details", "| a |\n| --- |\n| inside |")}
    )
    cell = nbformat.v4.new_code_cell("1", outputs=[output], execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "one.ipynb")
    reports.write_notebook_page(tmp_path / "one.ipynb")
    text = (tmp_path / "one.html").read_text()
    assert "inside" in text[text.rindex("<details>") : text.rindex("</details>")]
