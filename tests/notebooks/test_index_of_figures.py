"""The index shows the published figures, with their machine and the code that was measured."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gallery_lib.notebooks.batch import latest


@pytest.fixture
def build(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run build.py for one task and the index, in a folder of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the script adds to
    own = ("build.py", "task_cells.py", "template.md", "pages/resnet50.md", "whole/index.md")
    for name in own:
        (tmp_path / "notebooks" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / "notebooks" / name, tmp_path / "notebooks" / name)
    shutil.copytree(checkout / "docs" / "examples", tmp_path / "docs" / "examples")
    shutil.copy(checkout / "docs" / "generated.py", tmp_path / "docs")
    for name in ("generated", "task_cells"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("build", tmp_path / "notebooks" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_index_shows_the_published_figures_with_their_machine_and_code(
    build: ModuleType,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, index = tmp_path / "benchmarks" / "results", tmp_path / "notebooks" / "index.ipynb"

    def built(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["build.py", *words])
        return build.main()

    assert built() == 0
    assert "No figures are committed yet." in index.read_text()
    shutil.copytree(
        checkout / "benchmarks" / "results" / latest.PUBLISHED, results / latest.PUBLISHED
    )
    assert built("--check") == 1
    assert "not up to date: index.ipynb" in capsys.readouterr().err
    assert built() == 0
    committed = latest.published(results)
    assert committed is not None
    speedup = committed.speedups({"resnet50": "ResNet-50"})["resnet50"].in_words
    said = index.read_text()
    assert f"| not measured | {speedup} |" in said and said.count(committed.described) == 1
