"""Builds the notebooks: those of tasks from `template.md` and a page per task in `pages/`, others from `whole/`.

    python3 notebooks/build.py            write notebooks/NAME.ipynb for every page
    python3 notebooks/build.py --check    say which of them differ from what would be written (exit code 1)

The notebooks are never edited by hand. Cell ids are counted, so the same sources give the same bytes. Figures in the
index that were measured with other code than what is here are marked; --check leaves these marks out, since any change of the
code may call for them.
"""

from __future__ import annotations

import argparse
import string
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parent / "docs")]  # a checkout works without being installed

from gallery_lib.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import generated
import jupytext
import nbformat

from gallery_lib import hardware, tasks
from gallery_lib.batch.measured_code import STALE, is_stale, newest_results
from gallery_lib.batch.shares import CPU_ONLY
from gallery_lib.config import NotebookConfig, PerformanceDataConfig, WalkConfig, WireConfig, YourModelConfig
from gallery_lib.options import parameters_source
from gallery_lib.stats import Ratio

RESULTS = FOLDER.parent / "benchmarks" / "results"
OPTIONS = {
    "data_parallel": WalkConfig,
    "communication": WireConfig,
    "performance_data": PerformanceDataConfig,
    "your_model": YourModelConfig,
}
"""Of the notebooks whose parameters are not those of a task's notebook."""
THUMBNAILS = Path("..") / "docs" / "images" / "thumbnails"  # as the notebooks link to them


def sections(page: Path) -> dict[str, str]:
    """The page's content by its `# name` headings."""
    result: dict[str, list[str]] = {}
    current: list[str] = []
    for line in page.read_text().splitlines():
        if line.startswith("# "):
            current = result.setdefault(line[2:].strip(), [])
        else:
            current.append(line)
    return {name: "\n".join(lines).strip() for name, lines in result.items()}


def last_runs() -> tuple[dict[str, dict[str, Any]], str]:
    """What benchmarks/gallery.py last wrote down, by notebook; and the conditions, in a sentence."""
    results = newest_results(RESULTS)
    if results is None:
        return {}, "Not measured yet: benchmarks/gallery.py has not been run."
    path, newest = results
    described = hardware.describe(newest["environment"])
    return newest["notebooks"], f"Measured on {newest['date']}, on {described} (benchmarks/results/{path.relative_to(RESULTS)})."


def outcome(run: dict[str, Any] | None, notebook: Path) -> tuple[str, str]:
    """Duration and speed-up of a notebook's last verified run, for the index."""
    if run is None or run["problem"]:
        return "not measured", "not measured"
    mark = STALE if is_stale(run, notebook) else ""
    duration = f"{run['seconds'] / 60:.1f} min{mark}"
    alone = [c for c in run["comparisons"] if c["processes"] == 1]
    if not alone:
        return duration, "no comparison"
    speedup = alone[0]["speedup"]
    text = str(Ratio(**speedup)) if speedup else "not comparable"
    return duration, f"{text}, {alone[0]['amp_level']}{mark}"


def index() -> dict[str, str]:
    """The index's table of notebooks, and the conditions of its figures."""
    runs, conditions = last_runs()
    rows = ["| | notebook | domain | hardware | duration | speed-up |", "|---|---|---|---|---|---|"]
    for page in pages():
        if page.stem == "index":
            continue
        if page.stem in tasks.names():
            task = tasks.get(page.stem)
            title, domain = task.title, task.domain
        else:
            title, domain = page.read_text().partition("\n# ")[2].partition("\n")[0], "any"
        duration, speedup = outcome(runs.get(page.stem), FOLDER / f"{page.stem}.ipynb")
        picture = THUMBNAILS / f"{page.stem}.png"
        image = f'<img src="{picture}" width="120" alt="A picture from the notebook {title}">' if (FOLDER / picture).exists() else ""
        needs = "2 CPU cores" if page.stem in CPU_ONLY else "2 CPU cores, or GPUs"
        rows.append(f"| {image} | [{title}]({page.stem}.ipynb) | {domain} | {needs} | {duration} | {speedup} |")
    return {"table": "\n".join(rows), "conditions": conditions}


def text_of(page: Path) -> str:
    """The notebook of one page, as Markdown that jupytext reads."""
    if page.stem == "index":
        return string.Template(page.read_text()).substitute(index())
    if page.parent.name == "whole":
        options = OPTIONS.get(page.stem, NotebookConfig)
        return string.Template(page.read_text()).substitute(parameters=parameters_source(options))
    template = string.Template((FOLDER / "template.md").read_text())
    try:
        return template.substitute(sections(page), name=page.stem, parameters=parameters_source(NotebookConfig), diff=generated.diff())
    except KeyError as missing:
        raise SystemExit(f"{page}: the template needs a section named {missing}") from None


def render(page: Path) -> str:
    """The notebook of one page, as the text of an .ipynb file."""
    notebook = jupytext.reads(text_of(page), fmt="md")
    notebook.metadata.pop("jupytext", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"


def pages() -> list[Path]:
    """The source of every notebook; that of the index, which depends on the others, comes last."""
    found = [*(FOLDER / "pages").glob("*.md"), *(FOLDER / "whole").glob("*.md")]
    return sorted(found, key=lambda page: (page.stem == "index", page))


def main() -> int:
    """Write or check all notebooks."""
    parser = argparse.ArgumentParser(description="Build the task notebooks from template.md and pages/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a notebook is not up to date")
    check = parser.parse_args().check
    different = []
    for page in pages():
        target = FOLDER / f"{page.stem}.ipynb"
        text = render(page)
        before = target.read_text() if target.exists() else ""
        if before.replace(STALE, "") != text.replace(STALE, ""):
            different.append(target.name)
        if before != text and not check:
            target.write_text(text)
    if check and different:
        print(f"not up to date: {', '.join(different)}. Run: python notebooks/build.py", file=sys.stderr)
        return 1
    print(f"{'checked' if check else 'built'}: {len(pages())} notebook(s), {len(different)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
