"""Build the notebooks: those of tasks from `template.md` and `pages/`, others from `whole/`.

    python3 notebooks/build.py            write notebooks/NAME.ipynb for every page
    python3 notebooks/build.py --check    name those that would change (exit code 1)

A task has a page in `pages/`. Its notebook shows the task's own model, loss and optimizer
(task_cells.py). The notebooks are never edited by hand. Cell ids are counted, so the same sources
give the same bytes. The metadata name the options class of the notebook's parameters.
"""

from __future__ import annotations

import argparse
import string
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# A checkout works without being installed.
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import jupytext
import nbformat
import task_cells
from parameters_cell import parameters_source

from gallery_lib import config, tasks
from gallery_lib.console.text import markdown_table
from gallery_lib.notebooks.cells.your_code import LOOP

OPTIONS = {
    "data_parallel": "DataParallelNotebookConfig",
    "communication": "CommunicationNotebookConfig",
    "performance_data": "PerformanceDataConfig",
    "your_model": "YourModelConfig",
    "index": None,
}
"""Options classes in `gallery_lib.config` of the notebooks that are not a task's."""


def sections(page: Path) -> dict[str, str]:
    """Return the page's content by its `# name` headings.

    A line of code that begins with `#` is no heading: code has it indented or behind other code.
    """
    result: dict[str, list[str]] = {}
    current: list[str] = []
    for line in page.read_text().splitlines():
        if line.startswith("# "):
            current = result.setdefault(line[2:].strip(), [])
        else:
            current.append(line)
    return {name: "\n".join(lines).strip() for name, lines in result.items()}


def options_of(page: Path) -> str | None:
    """Return the name of the options class of the notebook that a page makes."""
    return OPTIONS.get(page.stem, "NotebookConfig")


def index() -> str:
    """Return the index's table of notebooks."""
    rows = [["notebook", "domain"]]
    for page in pages():
        if page.stem != "index":
            domain = tasks.get(page.stem).domain if page.stem in tasks.names() else "any"
            rows.append([f"[{title_of(page)}]({page.stem}.ipynb)", domain])
    return markdown_table(rows)


def title_of(page: Path) -> str:
    """Return the title of the notebook that a page makes."""
    if page.stem in tasks.names():
        return tasks.get(page.stem).title
    return page.read_text().partition("\n# ")[2].partition("\n")[0]


def text_of(page: Path) -> str:
    """Return the notebook of one page, as Markdown that jupytext reads."""
    options = options_of(page)
    parameters = parameters_source(getattr(config, options)) if options else ""
    if page.parent.name == "whole":
        diff = task_cells.diff_of_script("return torch.optim.AdamW(parameters)")
        return string.Template(page.read_text()).substitute(
            parameters=parameters, diff=diff, table=index() if page.stem == "index" else ""
        )
    template = string.Template((FOLDER / "template.md").read_text())
    task = tasks.get(page.stem)
    optimizer = task_cells.optimizer_cell(task.optimizer)
    try:
        return template.substitute(
            sections(page),
            name=page.stem,
            parameters=parameters,
            build_model_cell=task_cells.function_cell(task.build_model),
            loss_cell=task_cells.function_cell(task.loss),
            optimizer_cell=optimizer,
            loop=LOOP,
            diff=task_cells.diff_of_script(optimizer),
        )
    except KeyError as missing:
        raise SystemExit(f"{page}: the template needs a section named {missing}") from None


def render(page: Path) -> str:
    """Return the notebook of one page, as the text of an .ipynb file."""
    notebook = jupytext.reads(text_of(page), fmt="md")
    notebook.metadata.pop("jupytext", None)
    notebook.metadata["language_info"] = {"name": "python"}
    if options := options_of(page):
        notebook.metadata["gallery"] = {"options": options}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def pages() -> list[Path]:
    """Return the source of every notebook."""
    return sorted([*(FOLDER / "pages").glob("*.md"), *(FOLDER / "whole").glob("*.md")])


def main() -> int:
    """Write or check all notebooks, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Build the task notebooks from template.md and pages/."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit code 1 when a notebook is not up to date",
    )
    check = parser.parse_args().check
    different = []
    for page in pages():
        target = FOLDER / f"{page.stem}.ipynb"
        text = render(page)
        before = target.read_text() if target.exists() else ""
        if before != text:
            different.append(target.name)
            if not check:
                target.write_text(text)
    if check and different:
        print(
            f"not up to date: {', '.join(different)}. Run: python notebooks/build.py",
            file=sys.stderr,
        )
        return 1
    print(
        f"{'checked' if check else 'built'}: {len(pages())} notebook(s), {len(different)} changed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
