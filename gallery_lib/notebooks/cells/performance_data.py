"""Functions for the notebook `performance_data`, which shows a table that was measured before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import PerformanceDataConfig
from gallery_lib.notebooks.cells.display import display_chart, display_table
from gallery_lib.notebooks.cells.task_settings import checked
from gallery_lib.system import paths

if TYPE_CHECKING:
    from gallery_lib.report.communication import Cell


def settings(parameters: dict[str, Any] | None = None) -> PerformanceDataConfig:
    """Check the notebook's parameters and return them.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    return checked(PerformanceDataConfig, parameters)


def read(settings: PerformanceDataConfig) -> list[Cell]:
    """Return the table's lines, and show the conditions that a JSON file beside it has.

    Raises:
        InputError: for a file that is no such table.
    """
    from gallery_lib.report.communication import read_cells

    here = Path(settings.table).expanduser()
    path = here if here.exists() else (paths.checkout() or Path.cwd()) / here
    cells = read_cells(path)
    beside = path.with_suffix(".json")
    about = json.loads(beside.read_text()) if beside.exists() else {}
    named = {"what_it_is": "what these figures are", "date": "date", "command": "command"}
    conditions = [[words, str(about[name])] for name, words in named.items() if name in about]
    timelines = "; ".join(dict.fromkeys(cell.timeline for cell in cells))
    display_table([["condition", ""], *conditions, ["timelines", timelines]])
    return cells


def show_scatter(cells: list[Cell]) -> None:
    """Show all models: the gain over plain DDP against how well DDP scales."""
    from gallery_lib.report import communication

    display_chart(communication.scatter(cells))


def show_advice(cells: list[Cell]) -> None:
    """Show for which models more hosts pay with plain DDP, and where the tuner gains."""
    from gallery_lib.report import communication

    display_table(communication.model_rows(cells))
