"""Pages of docs/gallery/: notebooks with the outputs of one batch, on a machine that they name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from refusal import refused


@pytest.fixture
def pages(checkout: Path, tmp_path: Path) -> Iterator[ModuleType]:
    """Yield docs/gallery_pages.py, which writes into a folder of the test."""
    path = checkout / "docs" / "gallery_pages.py"
    spec = importlib.util.spec_from_file_location("gallery_pages", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.GALLERY = tmp_path / "gallery"
    yield module


def test_only_what_passed_gets_a_page_with_its_machine_and_day(
    pages: ModuleType, batch: Path
) -> None:
    assert pages.write([batch]) == 0
    assert {path.name for path in pages.GALLERY.glob("*.md")} == {"README.md", "resnet50.md"}
    text = (pages.GALLERY / "resnet50.md").read_text()
    assert "> **Run on 2026-11-21**" in text and "A CPU" in text
    assert "on your machine they will be others" in text
    assert "| baseline | 25.8 |" in text and "```python\n" in text
    index = (pages.GALLERY / "README.md").read_text()
    assert "[ResNet-50](resnet50.md)" in index and "2 min 50 s" in index


def test_figures_lie_beside_the_page_small_and_with_their_text(
    pages: ModuleType, batch: Path
) -> None:
    pages.write([batch])
    text = (pages.GALLERY / "resnet50.md").read_text()
    assert "![Line plot of *two* things: one rises, the other_one falls.](resnet50-1.png)" in text
    assert sorted(path.name for path in pages.GALLERY.glob("*.png")) == [
        "resnet50-1.png",
        "resnet50-2.png",
    ]


def test_paths_of_the_machine_are_left_out(pages: ModuleType) -> None:
    text = f"$ python3 x --run_dir={pages.ROOT}/runs/a and {Path.home()}/b"
    assert pages._without_paths(text) == "$ python3 x --run_dir=runs/a and ~/b"


def test_a_page_without_its_note_or_figure_or_too_large_is_found(
    pages: ModuleType, batch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.write([batch])
    page = pages.GALLERY / "resnet50.md"
    page.write_text(page.read_text().replace(pages.MARK, "Run on "))
    (pages.GALLERY / "resnet50-2.png").unlink()
    monkeypatch.setattr(pages, "MOST_BYTES", 100)
    found = "\n".join(pages.problems())
    assert "resnet50.md does not say where and when it was run" in found
    assert "resnet50.md shows resnet50-2.png, which does not exist" in found
    assert "at most 100" in found
    assert pages.check() == 1


def test_a_folder_without_a_batch_is_refused(pages: ModuleType, tmp_path: Path) -> None:
    with refused(tmp_path / "report.json"):
        pages.write([tmp_path])
    assert not pages.GALLERY.exists()


def test_a_path_of_the_machine_is_found(pages: ModuleType, batch: Path) -> None:
    pages.write([batch])
    page = pages.GALLERY / "resnet50.md"
    page.write_text(f"{page.read_text()}\n$ python3 x --run_dir=/home/someone/runs/a\n")
    assert "has a path of the machine: /home/someone/runs/a" in "\n".join(pages.problems())


def test_the_committed_pages_are_whole(checkout: Path, pages: ModuleType) -> None:
    pages.GALLERY = checkout / "docs" / "gallery"
    assert len(list(pages.GALLERY.glob("*.md"))) > 10
    assert list(pages.problems()) == []
