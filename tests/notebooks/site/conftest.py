"""A small batch of notebooks as `gallery run` leaves it, and the site that is built of it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import made_comparison
import pytest
from PIL import Image

from gallery_lib.config import SiteConfig
from gallery_lib.notebooks.batch.record import Record, Report, write_report
from gallery_lib.stats import Ratio

ALTERNATIVE = "Line plot of *two* things: [one] rises, the other_one falls."
TABLE = "| variant | samples/s |\n| --- | --- |\n| baseline | 25.8 |\n| compiler-opt | 35.5 |"


def png() -> str:
    """Return a picture as a notebook holds it."""
    buffer = io.BytesIO()
    Image.new("RGB", (900, 400), (0, 114, 178)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def figure(alternative: str | None) -> dict[str, Any]:
    """Return the output of a cell that shows a figure."""
    metadata = {"image/png": {"alt": alternative}} if alternative else {}
    return {
        "output_type": "display_data",
        "metadata": metadata,
        "data": {"image/png": png(), "text/plain": "a figure"},
    }


def executed(committed: Path, target: Path) -> None:
    """Write the committed notebook with outputs into `target`.

    The outputs are a wide progress bar, a table, and a figure with a table.
    """
    notebook = json.loads(committed.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        cell["execution_count"] = number
    table = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"text/markdown": TABLE, "text/plain": TABLE},
    }
    bar = "resnet50 on 1 process(es): 100%|" + "█" * 80 + "| 92/92 [00:41<00:00]"
    code[1]["outputs"] = [table]
    code[2]["outputs"] = [
        {"output_type": "display_data", "metadata": {}, "data": {"text/plain": bar}}
    ]
    code[3]["outputs"] = [
        figure(ALTERNATIVE),
        table,
        figure("Another figure, with words of its own."),
    ]
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(notebook))


@pytest.fixture(scope="session")
def batch(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a batch in which ResNet-50 passed, with a comparison, and VGG-16 failed.

    The other notebooks were not asked for.
    """
    folder = tmp_path_factory.mktemp("batch")
    executed(checkout / "notebooks" / "resnet50.ipynb", folder / "resnet50" / "resnet50.ipynb")
    results = json.loads(
        (checkout / "benchmarks" / "results" / "xeon-avx512-2core" / "resnet50.json").read_text()
    )
    old = results["comparisons"][0]  # of an earlier version, with figures that the site shows
    found = made_comparison.comparison(Ratio(**old["speedup"]), old["break_even_steps"])
    techniques = old["variants"]["compiler-opt"]["techniques"]
    found = made_comparison.changed(found, config={"amp_level": "O1"}, techniques=techniques)
    (folder / "resnet50" / "runs").mkdir(parents=True)
    made_comparison.write(found, folder / "resnet50" / "runs" / "compare")
    ran = Record(
        "passed",
        None,
        170.2,
        "2026-11-21T12:00:00+0000",
        1,
        False,
        {"seed": 3},
        "abc",
        "resnet50",
        15,
        15,
    )
    failed = Record(
        "failed",
        "ValueError: planted",
        9.0,
        "2026-11-21T12:03:00+0000",
        1,
        False,
        {},
        "abc",
        "vgg16",
        4,
        15,
    )
    machine = {
        "python": "3.11",
        "torch": "2.15",
        "cpu": "A CPU",
        "cores": 2,
        "isa": ["avx2"],
        "memory_bytes": 2**34,
    }
    times = {
        "began": "2026-11-21T12:00:00+0000",
        "ended": "2026-11-21T12:04:00+0000",
        "interrupted_by": None,
        "seconds": 180.0,
    }
    report = Report(
        command="gallery run",
        **times,
        options={},
        machine=machine,
        notebooks={"resnet50": ran, "vgg16": failed},
    )  # type: ignore[arg-type]
    write_report(folder, report)
    return folder


@pytest.fixture(scope="session")
def site(batch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the whole site, built as `gallery site` builds it."""
    from gallery_lib.notebooks.site.build import build

    return build(SiteConfig(run=str(batch), out=str(tmp_path_factory.mktemp("site") / "site")))
