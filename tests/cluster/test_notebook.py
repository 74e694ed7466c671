"""The notebook on communication, executed by papermill on a machine that can have a lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed_notebook import execute

pytestmark = [pytest.mark.cluster, pytest.mark.several_cores]


def test_the_notebook_measures_the_techniques_on_a_lab(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    small = {"width": 128, "rate": "50mbit", "block_steps": 1, "epochs": 1}
    executed = execute(
        checkout / "notebooks" / "communication.ipynb", tmp_path / "executed", small, kernel
    )
    text, figures = executed.shown()
    assert len(figures) == 1  # of the step times
    assert "emulated link" in figures[0].metadata["image/png"]["alt"]
    assert "**Not measured**" not in text and "FAILED" not in text
    for row in ("DDP", "two streams", "int8", "no communication"):
        assert f"| {row} |" in text
    assert "| int8 | 0." in text
    assert "hierarchical" not in text  # which takes several processes on each host
