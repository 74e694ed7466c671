"""The shipped notebooks keep the conventions, and the checker finds each breach."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Change = Callable[[dict[str, Any]], None]


def check(checkout: Path, folder: Path) -> tuple[int, str]:
    """Return the checker's exit code and words, from this process."""
    with contextlib.redirect_stdout(io.StringIO()) as words:
        code = checker(checkout / "notebooks" / "conventions.py").main(folder)
    return code, words.getvalue()


@functools.cache
def checker(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location("conventions_under_test", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PRINTED = {"output_type": "stream", "name": "stdout", "text": "1"}


def code(source: str, **more: Any) -> Change:
    """Return a change that adds a code cell."""
    cell = {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}
    return lambda notebook: notebook["cells"].append({**cell, "execution_count": None, **more})


def text(source: str) -> Change:
    """Return a change that adds a Markdown cell."""
    return lambda notebook: notebook["cells"].append(
        {"cell_type": "markdown", "metadata": {}, "source": source}
    )


def replaced(before: str, after: str) -> Change:
    def change(notebook: dict[str, Any]) -> None:
        assert any(before in "".join(cell["source"]) for cell in notebook["cells"])
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"]).replace(before, after)

    return change


def without_tags(notebook: dict[str, Any]) -> None:
    for cell in notebook["cells"]:
        cell["metadata"] = {}


def of_another_kernel(notebook: dict[str, Any]) -> None:
    notebook["metadata"]["kernelspec"]["name"] = "python3"


@pytest.fixture
def changed(checkout: Path, tmp_path: Path) -> Callable[[Change], tuple[int, str]]:
    """Return the checker's exit code and words on resnet50.ipynb with one change."""

    def run(change: Change) -> tuple[int, str]:
        notebook = json.loads((checkout / "notebooks" / "resnet50.ipynb").read_text())
        change(notebook)
        (tmp_path / "resnet50.ipynb").write_text(json.dumps(notebook))
        return check(checkout, tmp_path)

    return run


def test_the_shipped_notebooks_keep_the_conventions(checkout: Path) -> None:
    script = checkout / "notebooks" / "conventions.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert not done.stderr and "0 breach(es)" in done.stdout
    assert check(checkout, checkout / "notebooks") == (0, done.stdout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("# ResNet-50", "ResNet-50"), "its header lacks a title"),
        (replaced("**You need**", "Needed:"), "its header lacks what one needs"),
        (of_another_kernel, "its kernel is `python3`, not `gallery`"),
        (without_tags, "no cell tagged `parameters`"),
        (replaced("rounds: int = None", "rounds: int = 8"), "its parameters cell is not what"),
        (code("1", outputs=[PRINTED]), "has outputs or an execution count"),
        (code("1", execution_count=3), "has outputs or an execution count"),
        (code("x = 1\n" * 21), "has 21 lines; at most 20"),
        (replaced("def train(", "def fit("), "no cell defines `train`"),
        (replaced("## Why is it faster?", "## Reasons"), "`Why is it faster?` is missing"),
        (code("!pip install torch"), "starts a command (`!`)"),
        (code("lines = !ls"), "starts a command (`lines = !`)"),
        (code("%%bash\nls"), "starts a command (`%%bash`)"),
        (code("import os\nos.system('ls')"), "starts a command (`os.system(`)"),
        (code("import matplotlib.pyplot as plt"), "draws by itself (`matplotlib`)"),
        (code("open('/home/me/data.txt')"), "holds the absolute path /home/me/data.txt"),
        (text("Look into `~/data` first."), "holds the absolute path ~/data"),
        (text('<img src="x.png" width="3" alt=" ">'), "shows a picture without alternative text"),
        (text("![](../docs/images/speed-ups.png)"), "shows a picture without alternative text"),
        (text("See [the other](gone.ipynb)."), "links to gone.ipynb, which does not exist"),
        (text("See [above](#The-machines)."), "links to the heading #The-machines"),
        (text("Run `python data_prep/gone.py`."), "names data_prep/gone.py, which does not exist"),
    ],
)
def test_each_breach_is_named(
    changed: Callable[[Change], tuple[int, str]], change: Change, message: str
) -> None:
    code, words = changed(change)
    assert code == 1
    assert message in words


@pytest.mark.parametrize(
    "change",
    [
        code("if x != 1:\n    y = not x"),
        text(
            "Forward and/or backward, 3 images / s, see https://example.org/a/b "
            "or [the docs](https://example.org/x)."
        ),
        text("See [above](#The-data), and `data[0](x)` in code."),
    ],
)
def test_what_only_looks_like_a_breach_passes(
    changed: Callable[[Change], tuple[int, str]], change: Change
) -> None:
    assert changed(change) == (0, "checked: 1 notebook(s), 0 breach(es)\n")


def test_two_notebooks_with_the_same_reasons_are_named(checkout: Path, tmp_path: Path) -> None:
    source = (checkout / "notebooks" / "resnet50.ipynb").read_text()
    for name in ("resnet50", "vgg16"):
        (tmp_path / f"{name}.ipynb").write_text(source)
    code, words = check(checkout, tmp_path)
    assert code == 1
    expected = "resnet50.ipynb and vgg16.ipynb: the section `Why is it faster?` is the same in both"
    assert expected in words


def test_a_folder_without_notebooks_does_not_pass(checkout: Path, tmp_path: Path) -> None:
    assert check(checkout, tmp_path)[0] == 1
