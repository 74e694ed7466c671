"""Notebooks on the site: none claims a run that did not happen, and figures have alt text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusal import refused

from gallery_lib.errors import RunFailed
from gallery_lib.notebooks.site.notebooks import Source, sources, write_page


def by_name(checkout: Path, run: Path | None) -> dict[str, Source]:
    return {source.name: source for source in sources(checkout / "notebooks", run)}


def written(source: Source, folder: Path) -> list[dict[str, Any]]:
    """Return the cells of the source's page."""
    write_page(source, folder)
    return json.loads((folder / f"{source.name}.ipynb").read_text())["cells"]


def test_without_a_batch_every_notebook_is_there_as_committed_and_says_that_it_was_not_run(
    checkout: Path, tmp_path: Path
) -> None:
    found = by_name(checkout, None)
    assert set(found) == {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} - {
        "index"
    }
    assert not any(source.executed for source in found.values())
    cells = written(found["resnet50"], tmp_path)
    assert cells[1]["source"].startswith(":::{warning}\n**Not run here**")
    assert not any(cell.get("outputs") for cell in cells)
    assert (
        found["resnet50"].title,
        found["resnet50"].summary.startswith("Image classification"),
    ) == ("ResNet-50", True)


def test_what_passed_in_the_batch_is_shown_with_its_outputs_date_machine_and_parameters(
    checkout: Path, batch: Path, tmp_path: Path
) -> None:
    source = by_name(checkout, batch)["resnet50"]
    cells = written(source, tmp_path)
    for part in ("Run on 2026-11-21", "2 min 50 s", "`seed=3`", "2 cores of A CPU"):
        assert part in cells[1]["source"]
    assert source.executed and any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("vgg16", "it is `failed`, ValueError: planted"), ("alexnet", "was not part of the batch")],
)
def test_what_did_not_pass_is_shown_without_outputs_and_with_the_reason(
    checkout: Path, batch: Path, name: str, reason: str
) -> None:
    source = by_name(checkout, batch)[name]
    assert (source.executed, source.path) == (False, checkout / "notebooks" / f"{name}.ipynb")
    assert reason in source.note


def test_figures_become_files_with_their_alternative_text(
    checkout: Path, batch: Path, tmp_path: Path
) -> None:
    cells = written(by_name(checkout, batch)["resnet50"], tmp_path)
    texts = [
        o["data"]["text/markdown"]
        for cell in cells
        for o in cell.get("outputs", [])
        if "text/markdown" in o["data"]
    ]
    shown = [text for text in texts if text.startswith("![")]
    assert shown == [
        r"![Line plot of \*two\* things: \[one\] rises, the other\_one falls.](resnet50-1.png)",
        "![Another figure, with words of its own.](resnet50-2.png)",
    ]
    assert all((tmp_path / f"resnet50-{n}.png").read_bytes().startswith(b"\x89PNG") for n in (1, 2))
    assert "image/png" not in json.dumps(cells)


def test_a_figure_without_alternative_text_stops_the_build_and_is_named(
    checkout: Path, batch: Path, tmp_path: Path
) -> None:
    source = by_name(checkout, batch)["resnet50"]
    notebook = json.loads(source.path.read_text())
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            output["metadata"] = {}
    mute = tmp_path / "resnet50.ipynb"
    mute.write_text(json.dumps(notebook))
    with pytest.raises(
        RunFailed, match=r"resnet50.ipynb, cell \d+, shows a figure without alternative text"
    ):
        write_page(Source("resnet50", mute, "ResNet-50", "", "", True), tmp_path / "pages")


def test_a_folder_that_holds_no_batch_is_refused(checkout: Path, tmp_path: Path) -> None:
    with refused(tmp_path / "report.json"):
        sources(checkout / "notebooks", tmp_path)
