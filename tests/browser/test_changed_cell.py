"""A reader changes a cell of a task's notebook, runs all again, and sees the change below.

In a real browser, in a JupyterLab: a notebook as it is shipped, with small parameters.
"""

from __future__ import annotations

from typing import Any

import pytest
from lab_page import Lab, Page, opened, wait_for
from small_tasks import SMALL

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.browser,
    pytest.mark.whole_machine,
    pytest.mark.timeout(580),
]

TURNS = {
    **{"rounds": 4, "block_steps": 2, "amp_level": '"O0"'},
    **{"processes": 1, "waterfall": False},
}
CELL, BEFORE, AFTER = "def build_optimizer", "RAdam(parameters, lr=1e-3)", "SGD(parameters, lr=0.0)"
CODE, LAST = "notebook.with_your_code(", "notebook.show_techniques(one)"
CELLS_SECONDS = 270.0


def run_all(shown: Page) -> None:
    """Restart the kernel, run all cells and wait for the last one."""
    shown.menu("Kernel", "Restart Kernel and Run All Cells…")
    shown.page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_for(lambda: shown.ran(LAST) is None, 30, "the outputs to go")
    wait_for(lambda: shown.ran(LAST) is not None, CELLS_SECONDS, "all cells to run")


def test_a_change_in_a_cell_is_trained_and_measured_below(browser: Any, lab: Lab) -> None:
    shown = opened(browser, lab, "tts_angular", "speaker encoder")
    shown.set_parameters({**SMALL["tts_angular"], **TURNS})
    run_all(shown)
    assert "those of the gallery's task tts_angular" in shown.output(CODE)
    assert "tts_angular: " in shown.output("notebook.show_comparison(one)")
    figures = shown.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-RenderedImage img")
    assert figures.count() >= 5

    (source,) = [text for text in shown.sources if CELL in text]
    assert source.count(BEFORE) == 1
    shown.write(CELL, source.replace(BEFORE, AFTER))
    run_all(shown)
    assert "Yours: build_optimizer" in shown.output(CODE)
    assert "your_cell.py:tts_angular: " in shown.output("notebook.show_comparison(one)")
    assert "No loss fell" in shown.output("notebook.show_training(")
    shown.picture("notebook.show_training(", "changed-cell-tts_angular")
