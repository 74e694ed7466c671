"""Notebook file as plain data, with the parts that a batch needs.

The file is read as plain JSON. Importing nbformat would take two seconds, because it brings a
schema validator, and a wrong parameter must be refused sooner than that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError


@dataclass(frozen=True)
class Cell:
    """One cell; only code cells have been executed and have outputs."""

    is_code: bool
    source: str
    tags: tuple[str, ...]
    execution_count: int | None
    outputs: list[dict[str, Any]]

    @property
    def error(self) -> tuple[str, str] | None:
        """Return name and value of the first exception in the outputs; None without one."""
        shown = [output for output in self.outputs if output["output_type"] == "error"]
        return (shown[0]["ename"], shown[0]["evalue"]) if shown else None


@dataclass(frozen=True)
class NotebookFile:
    """The cells of a notebook, and the Jupyter kernel that it asks for."""

    cells: list[Cell]
    kernel: str

    @property
    def code(self) -> list[Cell]:
        """Return the code cells that are not blank."""
        return [cell for cell in self.cells if cell.is_code and cell.source.strip()]

    @property
    def parameters_source(self) -> str | None:
        """Return the source of the cell tagged `parameters`; None without one.

        papermill inserts the given parameters behind this cell.
        """
        return next(
            (cell.source for cell in self.cells if cell.is_code and "parameters" in cell.tags), None
        )


def read_notebook(path: Path) -> NotebookFile:
    """Return the notebook at `path`.

    Raises:
        InputError: for a missing or damaged notebook, and for a format older than 4.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["nbformat"] != 4:
            raise InputError(
                f"{path} has notebook format {values['nbformat']}; open and save it in JupyterLab "
                "to bring it to 4.",
                parameter="nbformat",
            )
        cells = [
            Cell(
                is_code=cell["cell_type"] == "code",
                source="".join(cell["source"]),
                tags=tuple(cell["metadata"].get("tags", ())),
                execution_count=cell.get("execution_count"),
                outputs=cell.get("outputs", []),
            )
            for cell in values["cells"]
        ]
        return NotebookFile(cells, values["metadata"].get("kernelspec", {}).get("name", "python3"))
    except FileNotFoundError:
        raise InputError(f"the notebook {path} does not exist.", parameter=str(path)) from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is no notebook that can be read ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None
