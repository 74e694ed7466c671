"""The ResNet-18 notebook in a real browser, in a JupyterLab started as `prepare.sh --lab` does.

One story is told once. A reader opens the notebook from the file browser, puts small values into
its parameters cell, and chooses Run All. The reader stops a cell while it trains, uses the kernel,
restarts it and runs everything. The tests look at what was seen on the way.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from chromium import screenshot
from lab_page import Lab, Page, opened, wait_for
from small_tasks import SMALL

pytestmark = [pytest.mark.browser, pytest.mark.whole_machine, pytest.mark.timeout(560)]

PARAMETERS = {
    **{**SMALL["resnet18"], "rounds": 4, "block_steps": 2, "amp_level": '"O0"'},
    **{"processes": 1, "waterfall": False},
}
ENDED_SECONDS = 10.0
CELLS_SECONDS = 420.0

TRAINING, MACHINE, LAST = (
    "notebook.compare(settings, processes=1)",
    "notebook.show_machine()",
    "notebook.show_techniques(one)",
)


@pytest.fixture(scope="module")
def shown(browser: Any, lab: Lab) -> Page:
    """Return the notebook, opened and with small parameters."""
    page = opened(browser, lab, "resnet18", "residual network")
    page.set_parameters(PARAMETERS)
    return page


@dataclass
class Stopped:
    """What was seen while a training cell was stopped, and after that."""

    training: set[psutil.Process]
    left: set[psutil.Process]
    message: str
    next_output: str


@pytest.fixture(scope="module")
def stopped(shown: Page, lab: Lab) -> Stopped:
    """Run All, an interrupt while a cell trains, and another cell run by hand."""
    before = lab.processes()
    shown.menu("Run", "Run All Cells")
    wait_for(
        lambda: re.search("warm-up|turns", shown.phase(TRAINING)),
        CELLS_SECONDS,
        "the training to begin",
    )
    screenshot(shown.page, "jupyterlab-2-training")
    training = lab.processes() - before
    shown.menu("Kernel", "Interrupt Kernel")
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not training & lab.processes(), ENDED_SECONDS, "the processes to end")
    left = training & lab.processes()
    number = wait_for(lambda: shown.ran(TRAINING), 20, "the cell to end")
    message = shown.cell(TRAINING).locator(".jp-OutputArea-output").last.text_content()
    shown.picture(TRAINING, "jupyterlab-3-interrupted")
    shown.cell(MACHINE).locator(".cm-content").click()
    shown.page.keyboard.press("Shift+Enter")
    wait_for(lambda: (shown.ran(MACHINE) or 0) > number, 20, "the next cell to run")
    return Stopped(training, left, message, shown.output(MACHINE))


@dataclass
class Finished:
    """What was seen while all cells ran, and in the end."""

    phases: list[str]  # what progress showed, in order of appearance
    verdict: str
    headings: list[str]
    pictures: int
    standard_error: list[str]
    seen_before_and_after_a_click: tuple[bool, bool]  # the table of parity checks


@pytest.fixture(scope="module")
def finished(stopped: Stopped, shown: Page) -> Finished:
    """Restart the kernel, run all cells to the end, and return what was seen."""
    shown.menu("Kernel", "Restart Kernel and Run All Cells…")
    shown.page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_for(lambda: shown.ran(LAST) is None and not shown.phase(TRAINING), 30, "the outputs to go")
    phases: list[str] = []

    def ended() -> bool:
        if (phase := shown.phase(TRAINING)) and phase not in phases:
            phases.append(phase)
        return shown.ran(LAST) is not None

    wait_for(ended, CELLS_SECONDS, "all cells to run")
    details = shown.cell("notebook.show_comparison(one)").locator("details").first
    table = details.locator("th", has_text="parity check")
    before = table.is_visible()
    shown.picture("notebook.show_comparison(one)", "jupyterlab-4-verdict")
    details.locator("summary").click()
    shown.picture("notebook.show_comparison(one)", "jupyterlab-4-table")
    shown.picture("notebook.show_losses(one)", "jupyterlab-5-plot")
    notebook = shown.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
    return Finished(
        phases,
        verdict=shown.output("notebook.show_comparison(one)"),
        headings=notebook.locator(".jp-OutputArea-output table th:first-child").all_text_contents(),
        pictures=notebook.locator(".jp-RenderedImage img").count(),
        standard_error=notebook.locator(
            '[data-mime-type="application/vnd.jupyter.stderr"]'
        ).all_text_contents(),
        seen_before_and_after_a_click=(before, table.is_visible()),
    )


def test_it_listens_on_this_machine_alone_and_asks_for_its_token(lab: Lab) -> None:
    assert lab.url.startswith("http://127.0.0.1:") or lab.url.startswith("http://localhost:")
    addresses = {
        link.laddr.ip
        for process in lab.processes()
        for link in process.net_connections()
        if link.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}
    assert lab.token
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{lab.url}api/contents", timeout=10)


def test_an_interrupt_ends_every_process_and_leaves_one_message_and_a_kernel_that_works(
    stopped: Stopped,
) -> None:
    assert len(stopped.training) >= 2  # supervisor and trainer
    assert stopped.left == set()
    (line,) = stopped.message.strip().splitlines()
    assert line.startswith(
        "Interrupted: the comparison was stopped before its end, and all its processes have been "
        "ended."
    )
    assert "This machine" in stopped.next_output


def test_a_cell_that_trains_shows_in_which_phase_it_is(finished: Finished) -> None:
    starts = [phase for phase in finished.phases if phase.startswith("baseline: ")]
    assert starts and "turns" in finished.phases
    assert finished.phases.index(starts[0]) < finished.phases.index("turns")


def test_after_a_restart_all_cells_run_and_show_tables_and_figures(finished: Finished) -> None:
    assert "PyTorch eager in" in finished.verdict and "parity passed" in finished.verdict
    assert {"setting", "technique"} <= set(finished.headings)
    assert finished.pictures >= 4
    assert finished.seen_before_and_after_a_click == (False, True)
    assert finished.standard_error == []


def test_saving_leaves_the_notebooks_of_the_checkout_as_they_were(
    finished: Finished, shown: Page, lab: Lab, checkout: Path
) -> None:
    copy = lab.root / "my_notebooks" / "resnet18.ipynb"
    shown.page.keyboard.press("ControlOrMeta+s")
    wait_for(
        lambda: any(cell.get("outputs") for cell in json.loads(copy.read_text())["cells"]),
        20,
        "the notebook to be saved",
    )
    for path in (lab.root / "notebooks").rglob("*.ipynb"):
        assert (
            path.read_bytes()
            == (checkout / "notebooks" / path.relative_to(lab.root / "notebooks")).read_bytes()
        )
