"""What readers, papermill and other machines rely on in the shipped notebooks and their pages.

That they are what their sources give, without outputs, is `notebooks/build.py --check`.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from gallery_lib import tasks
from gallery_lib.notebooks.plan import read_notebook

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHELL = r"^\s*!|^\s*\w+\s*=\s*!|^\s*%%?(bash|sh|script|sx|system|cmd)\b|os\.system\(|\bsubprocess\b"
PLOTTING = r"\b(matplotlib|plt|seaborn|plotly|bokeh|altair|IPython\.display)\b"
ABSOLUTE_PATH = r"(?:^|(?<=[\s\"'`(=\[]))(?:/[A-Za-z][\w.-]*|~/|[A-Z]:\\)[^\s\"'`)\]]*"
FOLDERS = r"\b(?:notebooks|data_prep|benchmarks|docs|gallery_lib|tests)"
FILE = rf"{FOLDERS}/[\w./-]*\w\.(?:py|ipynb|md|json|yaml)\b"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_what_it_is_has_short_cells_that_run_anywhere_and_no_dead_link(
    name: str,
) -> None:
    notebook = read_notebook(FOLDER / f"{name}.ipynb")
    text = "\n\n".join(cell.source for cell in notebook.cells if not cell.is_code)
    metadata = json.loads((FOLDER / f"{name}.ipynb").read_text())["metadata"]
    assert metadata["kernelspec"]["name"] == "gallery" and re.match(r"# \S", text)
    assert "**You will learn** " in text and "**You need** " in text
    assert ("settings(" in "".join(c.source for c in notebook.code)) == bool(notebook.options)
    for target in re.findall(r"\]\(([^)\s#]+)", re.sub(r"```.*?```", "", text)):
        assert re.match(r"[a-z]+:", target) or (FOLDER / target).exists(), target
    for file in re.findall(FILE, text):
        assert (FOLDER.parent / file).exists(), file
    assert "![](" not in text and "<img" not in text
    for cell in notebook.cells:
        assert not re.findall(ABSOLUTE_PATH, cell.source, re.MULTILINE), cell.source
    for cell in notebook.code:
        assert len(cell.source.splitlines()) <= 20, cell.source
        # A command that fails would go unseen, and a figure would have no alternative text.
        assert not re.search(SHELL, cell.source, re.MULTILINE), cell.source
        assert not re.search(PLOTTING, cell.source), cell.source


def test_the_notebooks_of_tasks_show_training_an_early_verdict_and_reasons_of_their_own() -> None:
    reasons = {}
    for name in tasks.names():
        notebook = read_notebook(FOLDER / f"{name}.ipynb")
        code = [cell.source for cell in notebook.code]
        for function in ("build_model", "loss", "build_optimizer", "train"):
            assert any(f"def {function}(" in source for source in code), name
        verdict, *later = (
            next(place for place, source in enumerate(code) if f"notebook.{call}" in source)
            for call in ("show_comparison(one)", "profile(", "launch(")
        )
        assert verdict < min(len(code) / 3, *later), name
        text = "\n".join(cell.source for cell in notebook.cells if not cell.is_code)
        reasons[name] = text.partition("## Why is it faster?\n")[2].partition("\n## ")[0].strip()
    assert all(reasons.values())
    assert not [pair for pair in itertools.combinations(reasons.values(), 2) if pair[0] == pair[1]]


def test_the_committed_pages_have_their_notes_and_figures_and_no_paths(checkout: Path) -> None:
    folder = checkout / "docs" / "gallery"
    texts = [path.read_text() for path in folder.glob("*.md")]
    assert len(texts) > 10
    for text in texts:
        assert "**Run on " in text
        assert not re.search(r"[=\s\"'(](/(?:home|root|tmp|work|Users|mnt|var)/\S+)", text)
        for alternative, file in re.findall(r"^!\[([^\]]*)\]\(([^)]+)\)$", text, re.MULTILINE):
            assert len(alternative) >= 30 and (folder / file).stat().st_size < 400_000
