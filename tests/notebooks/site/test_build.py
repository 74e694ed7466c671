"""`gallery site`: what it refuses, and the whole site, built strictly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusal import check_refused_command

from gallery_lib.cli.main import main
from gallery_lib.errors import RunFailed
from gallery_lib.notebooks.site import build as building
from gallery_lib.notebooks.site import check
from gallery_lib.notebooks.site.build import MARK_FILE, run_sphinx
from gallery_lib.system.extras import install_command

# The site is built once, for the tests in a browser too.
pytestmark = pytest.mark.xdist_group("the whole site")


@pytest.mark.parametrize(
    ("what", "values"),
    [("file", ["here", "--out"]), ("folder", ["here", "--out"]), ("run", ["report.json"])],
)
def test_what_is_no_site_is_left_alone_and_what_is_no_batch_is_refused(
    what: str, values: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    words = ["--out", str(here)]
    if what == "file":
        here.write_text("mine")
    elif what == "folder":
        here.mkdir()
        (here / "mine.txt").touch()
    else:
        words += ["--run", str(tmp_path)]
    before = sorted(tmp_path.rglob("*"))
    check_refused_command(main(["site", *words]), capsys.readouterr().err, tmp_path, *values)
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_tools_are_named_with_what_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "TOOLS", ("json", "no_such_tool"))
    code = main(["site", "--out", str(tmp_path / "site")])
    said = capsys.readouterr().err
    check_refused_command(code, said, "(no_such_tool)", f" {install_command('site')}\n")
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_the_whole_site_has_every_page_and_every_link_and_needs_nothing_from_elsewhere(
    site: Path, checkout: Path
) -> None:
    assert check.problems(site) == []
    notebooks = {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} - {"index"}
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {f"notebooks/{name}.html" for name in notebooks} <= pages
    assert {
        "index.html",
        "benchmarks/results/README.html",
        "benchmarks/notes/parity.html",
        "options.html",
        "architecture.html",
        "api/acceleration.html",
        "guides/numbers.html",
    } <= pages
    assert json.loads((site / MARK_FILE).read_text())["batch"]
    text = {name: (site / name).read_text() for name in pages}
    assert (
        "accelerate" in text["api/acceleration.html"]
        and "gallery_lib.acceleration.one_call.accelerate" in text["genindex.html"]
    )
    assert "MobileNetV3-Small" in text["guides/add_a_model.html"]
    executed = text["notebooks/resnet50.html"]
    assert "Run on 2026-11-21" in executed and "<td><p>35.5</p></td>" in executed
    assert 'alt="Line plot of *two* things: [one] rises, the other_one falls."' in executed
    assert "Not run here" in text["notebooks/vgg16.html"] and "Not run here" not in executed


@pytest.mark.slow
def test_a_warning_of_sphinx_fails_the_build_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "conf.py").write_text("html_theme = 'basic'")
    (tmp_path / "sources" / "index.rst").write_text("Title\n=====\n\n:doc:`gone`\n")
    with pytest.raises(RunFailed, match=r"index.rst:4.*unknown document: 'gone'"):
        run_sphinx(tmp_path / "sources", tmp_path / "pages")
