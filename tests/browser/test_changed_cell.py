"""A reader changes a cell of a task's notebook, runs all again, and sees the change below.

In a real browser, in a JupyterLab: three notebooks as they are shipped, with small parameters.
"""

from __future__ import annotations

import os
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
    "rounds": 4,
    "block_steps": 2,
    "amp_level": '"O0"',
    "processes": 1,
    "waterfall": False,
}
CHANGES = {
    "tts_angular": (
        "speaker encoder",
        "def build_optimizer",
        "RAdam(parameters, lr=1e-3)",
        "SGD(parameters, lr=0.0)",
    ),
    "resnet18": (
        "residual network",
        "def loss",
        "cross_entropy(model(inputs), labels)",
        "cross_entropy(model(inputs), labels, label_smoothing=0.1)",
    ),
    "hf_Bert": (
        "masked language",
        "def build_model",
        "BertConfig()",
        "BertConfig(num_hidden_layers=2)",
    ),
}
"""By notebook: words of its summary; a cell, what is changed there, and what it becomes."""
CODE, LAST = "notebook.with_your_code(", "notebook.show_techniques(one)"
CELLS_SECONDS = 270.0


def run_all(shown: Page) -> None:
    """Restart the kernel, run all cells and wait for the last one."""
    shown.menu("Kernel", "Restart Kernel and Run All Cells…")
    shown.page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_for(lambda: shown.ran(LAST) is None, 30, "the outputs to go")
    wait_for(lambda: shown.ran(LAST) is not None, CELLS_SECONDS, "all cells to run")


@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "tts_angular"
        else pytest.param(
            name,
            marks=pytest.mark.skipif(
                "GALLERY_TEST_ALL_CELLS" not in os.environ,
                reason="minutes each: GALLERY_TEST_ALL_CELLS=1 pytest -m browser tests/browser",
            ),
        )
        for name in CHANGES
    ],
)
def test_a_change_in_a_cell_is_trained_and_measured_below(
    browser: Any, lab: Lab, name: str
) -> None:
    summary, cell, before, after = CHANGES[name]
    shown = opened(browser, lab, name, summary)
    shown.set_parameters({**SMALL[name], **TURNS})
    run_all(shown)
    assert f"those of the gallery's task {name}" in shown.output(CODE)
    assert f"{name}: " in shown.output("notebook.show_comparison(one)")
    figures = shown.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-RenderedImage img")
    assert figures.count() >= 6

    (source,) = [text for text in shown.sources if cell in text]
    assert source.count(before) == 1
    shown.write(cell, source.replace(before, after))
    run_all(shown)
    function = cell.removeprefix("def ")
    assert f"Yours: {function}" in shown.output(CODE)
    assert f"your_cell.py:{name}: " in shown.output("notebook.show_comparison(one)")
    if name == "tts_angular":  # whose training is broken by the change
        assert "No loss fell" in shown.output("notebook.show_training(")
    shown.picture("notebook.show_training(", f"changed-cell-{name}")
