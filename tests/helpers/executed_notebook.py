"""Execution of a notebook with papermill, as a batch does it, and what its cells show."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import papermill


@dataclass(frozen=True)
class Executed:
    """An executed notebook: its code cells, and the folder with its runs."""

    code: list[Any]
    runs: Path

    def shown(self) -> tuple[str, list[Any]]:
        """Return all Markdown that was displayed, and the figures.

        Neither needs JavaScript or HTML that a reader has to trust. The one HTML in the Markdown is
        `<details>`, which JupyterLab keeps in a notebook that is not trusted.
        """
        outputs = [output for cell in self.code for output in cell.outputs]
        assert "stderr" not in (output.get("name") for output in outputs)
        kinds = ("display_data", "execute_result")
        found = [output for output in outputs if output.output_type in kinds]
        trusted = {"text/html", "application/javascript"}
        assert all(trusted.isdisjoint(output.data) for output in found)
        figures = [output for output in found if "image/png" in output.data]
        assert all(len(figure.metadata["image/png"]["alt"]) > 30 for figure in figures)
        texts = (output.data.get("text/markdown") for output in found)
        return "\n".join(filter(None, texts)), figures


def execute(
    source: Path, folder: Path, parameters: Mapping[str, Any], environment: Mapping[str, str]
) -> Executed:
    """Run a notebook with papermill in this process; an error in a cell is raised.

    Jupyter chooses a kernel's ports before the kernel takes them. A notebook whose kernel lost a
    port to another process meanwhile is started once more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs = folder / "runs"
    run = functools.partial(
        papermill.execute_notebook,
        str(source),
        str(folder / "out.ipynb"),
        parameters=dict(parameters),
        cwd=str(source.parent),
        progress_bar=False,
    )
    with patch.dict(os.environ, {**environment, "GALLERY_RUNS_DIR": str(runs)}):
        try:
            done = run()
        except RuntimeError as error:
            if "Kernel died before replying" not in str(error) or runs.exists():
                raise
            done = run()
    cells = [cell for cell in done.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    return Executed(cells, runs)
