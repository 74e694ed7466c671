"""Check the conventions of the notebooks, which readers, papermill and other machines rely on.

    python notebooks/conventions.py [FOLDER]

Every notebook in FOLDER (default: this one) is checked; the exit code is 1 when one breaks a rule.

The check reads the files and executes nothing. It takes figures to have alternative text where
gallery_lib's functions draw them, since these add it. The tests that execute the notebooks look at
the figures themselves. Links into the network are not followed.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

# A checkout works without being installed.
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from parameters_cell import parameters_source

from gallery_lib import config, tasks
from gallery_lib.errors import InputError
from gallery_lib.notebooks.batch.notebook_file import Cell, NotebookFile, read_notebook

ROOT = Path(__file__).resolve().parent.parent
MAX_CODE_LINES = 20
KERNEL = "gallery"
WHY = "Why is it faster?"
"""Heading of the section that says why a model trains faster, in words of its own."""
HEADER = (
    ("a title", r"\A# \S"),
    ("what one learns", r"\*\*You will learn\*\* \S"),
    ("what one needs", r"\*\*You need\*\* \S"),
)

SHELL = re.compile(
    r"^\s*!|^\s*\w+\s*=\s*!|^\s*%%?(bash|sh|script|sx|system|cmd)\b|\bos\.system\(|\bsubprocess\b"
    r"|\.getoutput\(",
    re.MULTILINE,
)
PLOTTING = re.compile(r"\b(matplotlib|plt|seaborn|plotly|bokeh|altair|IPython\.display)\b")
ABSOLUTE_PATH = re.compile(
    r"(?:^|(?<=[\s\"'`(=\[]))(?:/[A-Za-z][\w.-]*|~/|[A-Z]:\\)[^\s\"'`)\]]*", re.MULTILINE
)
IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<target>[^)\s]+)[^)]*\)|<img\b(?P<attributes>[^>]*)>")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)[^)]*\)|<a\b[^>]*href=[\"']([^\"']+)")
CODE_IN_TEXT = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
MENTIONED_FILE = re.compile(
    r"\b(?:notebooks|data_prep|benchmarks|docs|gallery_lib|tests)"
    r"/[\w./-]*\w\.(?:py|ipynb|md|json|yaml)\b"
)

Problems = Iterator[tuple[int | None, str]]
"""Number of the cell from 1 (None: the whole notebook), and what is wrong with it."""


def _cells(notebook: NotebookFile, *, code: bool) -> Iterator[tuple[int, Cell]]:
    return ((number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.is_code == code)


def header(notebook: NotebookFile, path: Path) -> Problems:
    """Require a title, what one learns, what one needs, and the gallery's kernel."""
    text = "\n\n".join(cell.source for _, cell in _cells(notebook, code=False))
    for what, pattern in HEADER:
        if not re.search(pattern, text):
            yield None, f"its header lacks {what}"
    if notebook.kernel != KERNEL:
        yield None, f"its kernel is `{notebook.kernel}`, not `{KERNEL}`"


def parameters(notebook: NotebookFile, path: Path) -> Problems:
    """Require a parameters cell where the notebook settles parameters.

    The cell must say what the options class says.
    """
    source, options = notebook.parameters_source, notebook.options
    if not source and any("settings(" in cell.source for cell in notebook.code):
        yield None, "it settles parameters, and has no cell tagged `parameters`"
    elif source != (parameters_source(getattr(config, options)) if options else ""):
        yield None, "its parameters cell is not what gallery_lib.config declares"


def outputs(notebook: NotebookFile, path: Path) -> Problems:
    """Require that a committed notebook has not been executed."""
    for number, cell in _cells(notebook, code=True):
        if cell.outputs or cell.execution_count is not None:
            yield number, "has outputs or an execution count: run nbstripout"


def code(notebook: NotebookFile, path: Path) -> Problems:
    """Require short code cells that start no shell command and draw no figures.

    The failure of a shell command would go unseen. Figures are drawn by the gallery's functions.
    """
    for number, cell in _cells(notebook, code=True):
        if (lines := len(cell.source.splitlines())) > MAX_CODE_LINES:
            yield number, f"has {lines} lines; at most {MAX_CODE_LINES} fit on a screen"
        if match := SHELL.search(cell.source):
            yield (
                number,
                f"starts a command (`{match[0].strip()}`), and would not fail with it: call "
                "gallery_lib.launcher.script.run_script",
            )
        if match := PLOTTING.search(cell.source):
            yield (
                number,
                f"draws by itself (`{match[0]}`), without alternative text: "
                "call a function of gallery_lib",
            )


def training(notebook: NotebookFile, path: Path) -> Problems:
    """Require that a task's notebook shows its training: the model, the loss and the loop."""
    if path.stem not in tasks.names():
        return
    defined = {
        statement.name
        for _, cell in _cells(notebook, code=True)
        for statement in _statements(cell.source)
        if isinstance(statement, ast.FunctionDef)
    }
    for name in ("build_model", "loss", "build_optimizer", "train"):
        if name not in defined:
            yield None, f"no cell defines `{name}`: a reader sees no training"


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a line of IPython's own
        return []


def why(notebook: NotebookFile) -> str:
    """Return what a notebook says on why its model trains faster; '' where it says nothing."""
    sources = [cell.source for _, cell in _cells(notebook, code=False)]
    text = "\n".join(sources).partition(f"## {WHY}\n")[2].partition("\n## ")[0]
    return " ".join(text.split())


def same_reasons(notebooks: Mapping[str, NotebookFile]) -> list[str]:
    """Return a message for each two notebooks of tasks that give the same reasons."""
    reasons = {name: why(notebook) for name, notebook in notebooks.items() if name in tasks.names()}
    messages = [
        f"{name}.ipynb: the section `{WHY}` is missing"
        for name, text in reasons.items()
        if not text
    ]
    return messages + [
        f"{one}.ipynb and {other}.ipynb: the section `{WHY}` is the same in both"
        for one, other in itertools.combinations(reasons, 2)
        if reasons[one] and reasons[one] == reasons[other]
    ]


def paths(notebook: NotebookFile, path: Path) -> Problems:
    """Refuse paths that only one machine has."""
    for number, cell in enumerate(notebook.cells, 1):
        for match in ABSOLUTE_PATH.finditer(cell.source):
            yield number, f"holds the absolute path {match[0]}"


def _anchors(notebook: NotebookFile) -> set[str]:
    """Return the anchors that JupyterLab gives headings: their text with dashes for spaces."""
    headings = re.findall(
        r"^#+ (.+)$",
        "\n".join(cell.source for _, cell in _cells(notebook, code=False)),
        re.MULTILINE,
    )
    return {heading.strip().replace(" ", "-") for heading in headings}


def links(notebook: NotebookFile, path: Path) -> Problems:
    """Require alternative text of pictures, and existing targets.

    Files that are linked to or named must exist, and so must headings that are linked to.
    """
    for number, cell in _cells(notebook, code=False):
        text = CODE_IN_TEXT.sub("", cell.source)
        targets = [target for match in LINK.finditer(text) for target in match.groups() if target]
        for match in IMAGE.finditer(text):
            attributes = match["attributes"] or ""
            alternative = re.search(r"alt=[\"']([^\"']*)", attributes)
            if not (match["alt"] or (alternative and alternative[1].strip())):
                yield number, f"shows a picture without alternative text: {match[0]}"
            source = re.search(r"src=[\"']([^\"']+)", attributes)
            targets += [match["target"] or (source[1] if source else "")]
        for target in targets:
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            if file and not (path.parent / file).exists():
                yield number, f"links to {file}, which does not exist"
            elif anchor and not file and anchor not in _anchors(notebook):
                yield number, f"links to the heading #{anchor}, which is not in this notebook"
        for mentioned in MENTIONED_FILE.findall(cell.source):
            if not (ROOT / mentioned).exists():
                yield number, f"names {mentioned}, which does not exist"


RULES: tuple[Callable[[NotebookFile, Path], Problems], ...] = (
    header,
    parameters,
    outputs,
    code,
    training,
    paths,
    links,
)


def broken(path: Path) -> list[str]:
    """Return a message for each breach of a rule in the notebook at `path`."""
    try:
        notebook = read_notebook(path)
        breaches = [problem for rule in RULES for problem in rule(notebook, path)]
    except InputError as error:
        return [str(error)]
    return [
        f"{path.name}{f', cell {number}' if number else ''}: {problem}"
        for number, problem in breaches
    ]


def _readable(paths: Iterable[Path]) -> Iterator[tuple[str, NotebookFile]]:
    for path in paths:
        with contextlib.suppress(InputError):  # which `broken` names
            yield path.stem, read_notebook(path)


def main(folder: Path) -> int:
    """Print what is broken in any notebook of the folder, and return the exit code."""
    notebooks = sorted(folder.glob("*.ipynb"))
    messages = [message for path in notebooks for message in broken(path)]
    messages += same_reasons(dict(_readable(notebooks)))
    print(
        "\n".join(
            [
                *messages,
                f"checked: {len(notebooks)} notebook(s), {len(messages)} breach(es)",
            ]
        )
    )
    return 1 if messages or not notebooks else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "notebooks"))
