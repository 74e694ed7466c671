"""Notebook pages of the site: executed ones from a batch of `gallery run`, else the committed ones.

A page never claims more than there is evidence for. Outputs are shown only of notebooks that
passed, with the date and the machine. Any other notebook appears without outputs, and its page says
why. Figures are written to files. A page keeps their alternative text beside them, and not in a
notebook's metadata.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.table import duration
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.notebooks.batch.notebook_file import read_notebook
from gallery_lib.notebooks.batch.record import Record, Report, read_report
from gallery_lib.system import hardware

LEFT_OUT = ("index",)
"""Notebooks that get no page, since the site has an index of its own."""


@dataclass(frozen=True)
class Source:
    """One notebook and its description.

    `note` is Markdown that says whether, where and when the notebook was run.
    """

    name: str
    path: Path
    title: str
    summary: str
    note: str
    executed: bool


def _title_and_summary(path: Path) -> tuple[str, str]:
    """Return the first heading of a notebook, and the paragraph below it as plain text.

    Raises:
        InputError: for a notebook that does not begin with a title.
    """
    text = next((cell.source for cell in read_notebook(path).cells if not cell.is_code), "")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    if not paragraphs or not paragraphs[0].startswith("# "):
        raise InputError(f"{path} does not begin with a title.", parameter=str(path))
    return paragraphs[0].removeprefix("# "), re.sub(
        r"[*`]", "", paragraphs[1] if len(paragraphs) > 1 else ""
    )


def machine_of(report: Report, record: Record) -> str:
    """Return the machine that a notebook of a batch ran on, in words."""
    devices = [comparison["device"] for comparison in record.comparisons]
    return hardware.describe(
        {**report.machine, "device": next(iter(devices), "GPUs not asked about")}
    )


def _note_of_run(report: Report, record: Record) -> str:
    values = (
        ", ".join(f"`{name}={value}`" for name, value in record.parameters.items())
        or "the notebook's own parameters"
    )
    when, where = (record.date or "")[:10], machine_of(report, record)
    return (
        f"**Run on {when}** in {duration(record.seconds)} with {values}, on {where}. Every figure "
        "on this page is of that run; on your machine they will be others."
    )


def _note_without_run(name: str, because: str) -> str:
    return (
        f"**Not run here**: {because}. The page shows the notebook as it is in the repository, "
        f"without outputs, so nothing on it has been measured. `gallery run {name}` runs it on "
        "your machine, and `gallery site --run FOLDER` shows what came out."
    )


def _why_not(report: Report | None, record: Record | None) -> str:
    if report is None:
        return "this site was built without a batch of notebooks"
    if record is None:
        return "it was not part of the batch that is shown here"
    return f"in the batch that is shown here it is `{record.status}`" + (
        f", {record.reason}" if record.reason else ""
    )


def sources(committed: Path, run: Path | None) -> list[Source]:
    """Return every notebook in the folder `committed`, from the batch `run` where it passed there.

    Raises:
        InputError: when `run` holds no batch, or names an executed notebook that is gone.
    """
    report = read_report(run) if run else None
    page_sources = []
    for path in sorted(committed.glob("*.ipynb")):
        if path.stem in LEFT_OUT:
            continue
        record = report.notebooks.get(path.stem) if report else None
        if run and report and record and record.status == "passed" and record.folder:
            shown, note, executed = (
                run / record.folder / path.name,
                _note_of_run(report, record),
                True,
            )
        else:
            shown, note, executed = (
                path,
                _note_without_run(path.stem, _why_not(report, record)),
                False,
            )
        page_sources.append(Source(path.stem, shown, *_title_and_summary(shown), note, executed))
    return page_sources


# --------------------------------------------------------------------------------------------------
# Pages


def _markdown_cell(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _escaped(text: str) -> str:
    """Return `text` escaped for the brackets of a Markdown picture."""
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", " ".join(text.split()))


def _as_page(output: dict[str, Any], figure_name: str, folder: Path, where: str) -> dict[str, Any]:
    """Return the output; a figure is replaced by Markdown that shows a file.

    The file `figure_name` is written into `folder`.

    Raises:
        RunFailed: for a figure without alternative text; the message names `where`.
    """
    png = output.get("data", {}).get("image/png")
    if png is None:
        return output
    alternative = output.get("metadata", {}).get("image/png", {}).get("alt", "").strip()
    if not alternative:
        raise RunFailed(
            f"{where} shows a figure without alternative text: show it with a function of "
            "gallery_lib.notebooks.cells.display."
        )
    (folder / figure_name).write_bytes(base64.b64decode("".join(png)))
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {"text/markdown": f"![{_escaped(alternative)}]({figure_name})"},
    }


def first_figure(path: Path) -> tuple[bytes, str] | None:
    """Return the first figure that a notebook shows, as PNG with its alternative text.

    Returns None for a notebook without such an output.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        alternative = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alternative and (png := output.get("data", {}).get("image/png")):
            return base64.b64decode("".join(png)), alternative
    return None


def write_page(source: Source, folder: Path) -> None:
    """Write `NAME.ipynb` for MyST-NB into `folder`, with its figures beside it.

    Raises:
        RunFailed: for a figure without alternative text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notebook = json.loads(source.path.read_text(encoding="utf-8"))
    figures = 0
    for number, cell in enumerate(notebook["cells"], 1):
        cell["metadata"] = {"tags": cell["metadata"].get("tags", [])}
        outputs = []
        for output in cell.get("outputs", []):
            figures += "image/png" in output.get("data", {})
            outputs.append(
                _as_page(
                    output,
                    f"{source.name}-{figures}.png",
                    folder,
                    f"{source.path.name}, cell {number},",
                )
            )
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs
        cell.pop("id", None)
    kind = "note" if source.executed else "warning"
    notebook["cells"].insert(1, _markdown_cell(f":::{{{kind}}}\n{source.note}\n:::"))
    notebook["metadata"] = {
        "kernelspec": notebook["metadata"].get("kernelspec", {}),
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    notebook["nbformat_minor"] = 4  # format 4.4 has no cell ids
    (folder / f"{source.name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
