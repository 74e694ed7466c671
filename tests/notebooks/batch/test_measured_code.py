"""A figure is stale only once the code that it measured has changed.

The index names the code of its figures.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tiny_notebooks import write_notebook

from gallery_lib.notebooks.batch.measured_code import code_digest

FILES = (
    *(
        "train/loop.py",
        "kernels/cuda/one.cu",
        "tasks/resnet50.py",
        "tasks/vgg16.py",
        "tasks/domains/shared.py",
        "report/plots.py",
        "cli/main.py",
    ),
    "notebooks/cells/performance_data.py",  # of one notebook alone
)


@pytest.fixture
def digest(tmp_path: Path) -> Callable[[], str]:
    """Return the digest of the notebook resnet50 in a small gallery, as it is now."""
    for name in FILES:
        (tmp_path / "gallery_lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "gallery_lib" / name).write_text("1\n")
    (tmp_path / "notebooks" / "resnet50").mkdir(parents=True)
    write_notebook(tmp_path / "notebooks", "resnet50", "compare()")
    write_notebook(tmp_path / "notebooks", "vgg16", "compare()")
    return lambda: code_digest(tmp_path / "notebooks" / "resnet50.ipynb", tmp_path / "gallery_lib")


@pytest.mark.parametrize(
    "changed",
    [
        "gallery_lib/train/loop.py",
        "gallery_lib/kernels/cuda/one.cu",
        "gallery_lib/tasks/resnet50.py",
        "gallery_lib/tasks/domains/shared.py",
        "gallery_lib/new.py",
        "notebooks/resnet50/script.py",
    ],
)
def test_a_change_of_what_is_measured_changes_the_digest(
    tmp_path: Path, digest: Callable[[], str], changed: str
) -> None:
    before = digest()
    (tmp_path / changed).write_text("2\n")
    assert digest() != before


@pytest.mark.parametrize(
    "changed",
    [
        *(
            "gallery_lib/tasks/vgg16.py",
            "gallery_lib/report/plots.py",
            "gallery_lib/cli/main.py",
            "gallery_lib/notebooks/cells/performance_data.py",
        ),
        *("gallery_lib/notes.txt", "notebooks/other.py"),
    ],
)
def test_a_change_of_another_task_or_of_what_only_shows_does_not(
    tmp_path: Path, digest: Callable[[], str], changed: str
) -> None:
    before = digest()
    (tmp_path / changed).write_text("2\n")
    assert digest() == before


def test_code_cells_count_and_prose_does_not(tmp_path: Path, digest: Callable[[], str]) -> None:
    before, path = digest(), tmp_path / "notebooks" / "resnet50.ipynb"
    values = json.loads(path.read_text())
    values["cells"].append({"cell_type": "markdown", "metadata": {}, "source": "Better words."})
    path.write_text(json.dumps(values))
    assert digest() == before
    write_notebook(tmp_path / "notebooks", "resnet50", "compare(2)")
    assert digest() != before


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


def test_the_index_names_machine_and_code_of_its_figures_once_and_marks_no_row(
    build: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results, index = (
        tmp_path / "benchmarks" / "results" / "a-machine" / "gallery.json",
        tmp_path / "notebooks" / "index.ipynb",
    )
    results.parent.mkdir(parents=True)
    machine = {
        "cores": 2,
        "cpu": "A CPU",
        "isa": [],
        "memory_bytes": 2**34,
        "device": "cpu",
        "python": "3.11",
        "torch": "2.15",
    }

    def built(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["build.py", *words])
        return build.main()

    assert built() == 0
    assert "No figures are committed yet." in index.read_text()
    alone = {
        "processes": 1,
        "amp_level": "O0",
        "verdict": "no measurable difference",
        "speedup": {"ratio": 1.2, "low": 0.9, "high": 1.5},
    }
    run = {"seconds": 90.0, "problem": None, "comparisons": [alone], "code": "of last week"}
    content = {
        "date": "2026-11-21",
        "environment": {**machine, "git": "abc123"},
        "notebooks": {"resnet50": run},
    }
    results.write_text(json.dumps(content))
    assert built("--check") == 1
    assert "not up to date: index.ipynb" in capsys.readouterr().err
    assert built() == 0
    said = index.read_text()
    assert "| 1.5 min | 1.20× (0.90 to 1.50), no measurable difference, fp32 |" in said
    assert said.count("2 cores of A CPU") == said.count("with code version abc123") == 1
    assert "stale" not in said
