"""Write docs/gallery/: the notebooks with the outputs of a batch, to be read online.

    python3 docs/gallery_pages.py --of runs/20261126-180000-gallery

Each page says on which machine and day it was run, and that the figures are not the reader's. Only
notebooks that passed get a page. Figures are stored with few colours, so that a page stays small.
Paths of the machine are left out.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# A checkout works without being installed.
sys.path.insert(0, str(ROOT))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from PIL import Image

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.text import duration, visible
from gallery_lib.errors import InputError
from gallery_lib.notebooks.reports import Record, Report, read_report
from gallery_lib.system import hardware

GALLERY = ROOT / "docs" / "gallery"
MARK = "**Run on "
"""Beginning of the note of each page on when and where it was run."""
_COLOURS, _WIDTH = 64, 1400
_LINES = 30
_UNASKED = "GPUs not asked about"
_NOTEBOOK_LINK = re.compile(r"\]\(([\w-]+)\.ipynb\)")


def _figure(png: str, path: Path) -> None:
    """Write a figure with few colours, at most _WIDTH pixels wide."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    if image.width > _WIDTH:
        height = round(image.height * _WIDTH / image.width)
        image = image.resize((_WIDTH, height), Image.Resampling.LANCZOS)
    image.quantize(_COLOURS).save(path, optimize=True)


def _text(lines: list[str]) -> str:
    """Return printed lines as fenced text, without those in the middle where there are many."""
    if len(lines) > _LINES:
        half = _LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} more lines …", *lines[-half:]]
    return "\n".join(["```text", *lines, "```"])


def _outputs(cell: dict[str, Any], name: str, counted: Iterator[int]) -> Iterator[str]:
    """Yield the outputs of a cell as Markdown; figures are written beside the page."""
    printed: list[str] = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output["output_type"] == "stream":
            lines = visible("".join(output["text"])).splitlines()
            printed += [line.rstrip() for line in lines if line.strip()]
        elif "image/png" in data:
            file = f"{name}-{next(counted)}.png"
            _figure("".join(data["image/png"]), GALLERY / file)
            alternative = output["metadata"]["image/png"]["alt"].replace("]", "").replace("[", "")
            yield f"![{alternative}]({file})"
        elif "text/markdown" in data:
            yield "".join(data["text/markdown"])
        elif "text/plain" in data:
            printed += "".join(data["text/plain"]).splitlines()
    if printed:
        yield _text(printed)


def machine_of(report: Report, record: Record) -> str:
    """Return the machine that a notebook of a batch ran on, in words."""
    devices = [comparison.device for comparison in record.comparisons]
    return hardware.describe({**report.machine, "device": next(iter(devices), _UNASKED)})


def _note(report: Report, record: Record, name: str) -> str:
    """Return the quoted paragraph that says where and when a notebook was run."""
    values = ", ".join(f"`{key}={value}`" for key, value in record.parameters.items())
    return (
        f"> {MARK}{(record.date or '')[:10]}** in {duration(record.seconds)} with "
        f"{values or 'its own parameters'}, on {machine_of(report, record)}. Code and figures "
        "on this page are of that run; the notebook of today may differ, and on your machine "
        "figures will.\n>\n"
        f"> The notebook: [{name}.ipynb](../../notebooks/{name}.ipynb)."
    )


def page(run: Path, report: Report, name: str) -> str:
    """Return the page of a notebook of the batch in `run`; its figures are written beside it."""
    record = report.notebooks[name]
    path = run / (record.folder or "") / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    counted = iter(range(1, 1000))
    parts: list[str] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(_NOTEBOOK_LINK.sub(r"](\1.md)", text))
            continue
        parts.append(f"```python\n{text}\n```")
        parts += _outputs(cell, name, counted)
    parts.insert(1, _note(report, record, name))
    text = "\n\n".join(parts).replace(f"{run.resolve()}/", "")
    return _without_paths(text) + "\n"


def _without_paths(text: str) -> str:
    """Return the text without this checkout's path and without this user's home."""
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    return text.replace(f"{Path.home()}/", "~/")


def index(shown: dict[str, tuple[Path, Report]]) -> str:
    """Return the page that lists the others, with the machine; generated.py writes its table."""
    records = {name: report.notebooks[name] for name, (_, report) in shown.items()}
    machines = {machine_of(report, records[name]) for name, (_, report) in shown.items()}
    # A notebook that measures nothing does not look for GPUs.
    machines = {machine for machine in machines if _UNASKED not in machine} or machines
    total = sum(record.seconds for record in records.values())
    return (
        "\n\n".join(
            [
                "# The notebooks, as they ran on one machine",
                f"{MARK}{'; '.join(sorted(machines))}**, all in {duration(total)}. Your own run "
                "says what acceleration gives you: `bash prepare.sh --run resnet50`.",
                "<!-- generated: gallery -->\n\n<!-- end -->",
                "The pages are made by `python3 docs/gallery_pages.py --of FOLDER` from batches of "
                "`gallery run --profile quick`, the table by `python3 docs/generated.py`.",
            ]
        )
        + "\n"
    )


def write(runs: list[Path]) -> int:
    """Write the pages of batches, and return the exit code. A later batch replaces an earlier one.

    Raises:
        InputError: for a folder without a batch, and for one in which nothing passed.
    """
    found: dict[str, tuple[Path, Report]] = {}
    for run in runs:
        report = read_report(run)
        passed = [name for name, one in report.notebooks.items() if one.status == "passed"]
        if not passed:
            raise InputError(f"{run} holds no notebook that passed.", parameter=str(run))
        found |= {name: (run, report) for name in passed if name != "index"}
    shown = {name: found[name] for name in sorted(found)}
    GALLERY.mkdir(exist_ok=True)
    for old in GALLERY.iterdir():
        old.unlink()
    for name, (run, report) in shown.items():
        (GALLERY / f"{name}.md").write_text(page(run, report, name), encoding="utf-8")
    (GALLERY / "README.md").write_text(index(shown), encoding="utf-8")
    print(f"wrote {len(shown)} page(s) to {GALLERY}; now: python3 docs/generated.py")
    return 0


def main() -> int:
    """Write the pages, and return the exit code."""
    parser = argparse.ArgumentParser(description="Write the notebooks with outputs as pages.")
    parser.add_argument("--of", type=Path, nargs="+", required=True, help="folders of batches")
    options = parser.parse_args()
    return exit_code_of(lambda: write(options.of), error_prefix="gallery_pages", interrupted="")


if __name__ == "__main__":
    sys.exit(main())
