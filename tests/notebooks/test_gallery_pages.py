"""Pages of docs/gallery/: notebooks with the outputs of one batch, on a machine that they name."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from gallery_lib.notebooks.batch.record import Record, Report, write_report

TABLE = "| variant | samples/s |\n| --- | --- |\n| baseline | 25.8 |\n| compiler-opt | 35.5 |"
RESULTS = {"resnet50": "passed", "vgg16": "failed"}
MACHINE = {"cpu": "A CPU", "cores": 2, "isa": ["avx2"], "memory_bytes": 2**34}
MACHINE |= {"python": "3.11", "torch": "2.15"}


def shown(data: dict[str, str], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an output of a cell."""
    return {"output_type": "display_data", "metadata": metadata or {}, "data": data}


def figure(alternative: str) -> dict[str, Any]:
    """Return the output of a cell that shows a figure."""
    picture = io.BytesIO()
    Image.new("RGB", (900, 400), (0, 114, 178)).save(picture, "PNG")
    png = base64.b64encode(picture.getvalue()).decode()
    return shown({"image/png": png, "text/plain": "a figure"}, {"image/png": {"alt": alternative}})


def record(status: str, name: str) -> Record:
    """Return the result of a notebook of the batch."""
    day = "2026-11-21T12:00:00+0000"
    return Record(status, None, 170.2, day, 1, False, {"seed": 3}, "abc", name)  # type: ignore[arg-type]


@pytest.fixture
def batch(checkout: Path, tmp_path: Path) -> Path:
    """Return a batch in which ResNet-50 passed and VGG-16 failed."""
    notebook = json.loads((checkout / "notebooks" / "resnet50.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code[1]["outputs"] = [shown({"text/markdown": TABLE})]
    code[3]["outputs"] = [
        figure("Line plot of *two* things: [one] rises, the other_one falls."),
        figure("Another figure, with words of its own."),
    ]
    folder = tmp_path / "batch"
    (folder / "resnet50").mkdir(parents=True)
    (folder / "resnet50" / "resnet50.ipynb").write_text(json.dumps(notebook))
    notebooks = {name: record(status, name) for name, status in RESULTS.items()}
    began = "2026-11-21T12:00:00+0000"
    write_report(folder, Report("gallery run", began, began, None, 180.0, {}, MACHINE, notebooks))
    return folder


@pytest.fixture
def pages(checkout: Path, tmp_path: Path) -> Iterator[ModuleType]:
    """Yield docs/gallery_pages.py, which writes into a folder of the test."""
    path = checkout / "docs" / "gallery_pages.py"
    spec = importlib.util.spec_from_file_location("gallery_pages", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.GALLERY = tmp_path / "gallery"
    yield module


def test_what_passed_gets_a_page_with_its_machine_day_and_small_figures(
    pages: ModuleType, batch: Path
) -> None:
    assert pages.write([batch]) == 0
    assert {path.name for path in pages.GALLERY.glob("*.md")} == {"README.md", "resnet50.md"}
    text = (pages.GALLERY / "resnet50.md").read_text()
    assert "> **Run on 2026-11-21**" in text and "A CPU" in text
    assert "on your machine they will be others" in text
    assert "| baseline | 25.8 |" in text and "```python\n" in text
    assert "![Line plot of *two* things: one rises, the other_one falls.](resnet50-1.png)" in text
    pictures = {path.name for path in pages.GALLERY.glob("*.png")}
    assert pictures == {"resnet50-1.png", "resnet50-2.png"}
    index = (pages.GALLERY / "README.md").read_text()
    assert "**Run on 2 cores of A CPU" in index and "<!-- generated: gallery -->" in index
    assert pages._without_paths(f"$ x --run_dir={pages.ROOT}/runs/a") == "$ x --run_dir=runs/a"


def test_the_committed_pages_have_their_notes_and_figures_and_no_paths(checkout: Path) -> None:
    folder = checkout / "docs" / "gallery"
    texts = [path.read_text() for path in folder.glob("*.md")]
    assert len(texts) > 10
    for text in texts:
        assert "**Run on " in text
        assert not re.search(r"[=\s\"'(](/(?:home|root|tmp|work|Users|mnt|var)/\S+)", text)
        for alternative, file in re.findall(r"^!\[([^\]]*)\]\(([^)]+)\)$", text, re.MULTILINE):
            assert len(alternative) >= 30 and (folder / file).stat().st_size < 400_000
