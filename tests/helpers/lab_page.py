"""A notebook in a real browser, in a JupyterLab started as `prepare.sh --lab` does.

`started` is the JupyterLab, `opened` a notebook in it, and `Page` what a reader does and sees.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from chromium import screenshot
from jupyter_server_client import answering

from gallery_lib.system.processes import end_supervised, start_supervised

MARK = "GALLERY_TEST_MARK"


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.2)
    return found


@dataclass
class Lab:
    """A running JupyterLab, whose processes all carry the mark in their environment."""

    process: subprocess.Popen[bytes]
    mark: str
    url: str
    token: str
    root: Path  # the folder that it shows

    def processes(self) -> set[psutil.Process]:
        """Return the processes that are there now."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.add(process)
        return found


@contextlib.contextmanager
def started(checkout: Path, kernel: Mapping[str, str], folder: Path) -> Iterator[Lab]:
    """Context: a JupyterLab in a copy of the notebooks, of which nothing is left at the end.

    It has settings and files of its own.
    """
    root, runtime, log = folder / "checkout", folder / "runtime", folder / "log.txt"
    shutil.copytree(
        checkout / "notebooks",
        root / "notebooks",
        ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
    )
    own = {
        "JUPYTER_RUNTIME_DIR": runtime,
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
    }
    own |= {
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "IPYTHONDIR": folder / "ipython",
        "GALLERY_RUNS_DIR": folder / "runs",
    }
    mark = uuid.uuid4().hex
    with log.open("w") as output:
        process = start_supervised(
            [sys.executable, "-m", "gallery_lib.notebooks.jupyterlab", str(root), "--no-browser"],
            {
                **kernel,
                **{k: str(v) for k, v in own.items()},
                "PYTHONPATH": str(checkout),
                MARK: mark,
            },
            stdout=output,
            stderr=output,
        )
    try:
        server = wait_for(lambda: answering(runtime), 60, "JupyterLab to answer")
        one = Lab(process, mark, server.url, server.token, root)
        yield one
    finally:
        end_supervised(process)
    assert one.processes() == set()


@dataclass
class Page:
    """The notebook in the browser, by what a reader does and sees."""

    page: Any
    sources: list[str]  # of the cells, in order
    name: str  # of the notebook

    def cell(self, source: str) -> Any:
        """Return the cell whose source holds `source`."""
        (number,) = [number for number, text in enumerate(self.sources) if source in text]
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell").nth(
            number
        )

    def menu(self, name: str, item: str) -> None:
        """Choose an item of the menu bar."""
        self.page.locator(".lm-MenuBar-item", has_text=name).click()
        self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def output(self, source: str) -> str:
        """Return the text below a cell."""
        return "\n".join(self.cell(source).locator(".jp-OutputArea-output").all_text_contents())

    def picture(self, source: str, name: str) -> None:
        """Take a screenshot with the cell in view.

        Cells get their height when they come into view, so the page is scrolled twice.
        """
        for _ in range(2):
            self.cell(source).scroll_into_view_if_needed()
            self.page.wait_for_timeout(300)
        screenshot(self.page, name)

    def ran(self, source: str) -> int | None:
        """Return the number in front of a cell that has run to its end."""
        found = re.search(r"\[(\d+)\]", self.cell(source).locator(".jp-InputPrompt").text_content())
        return int(found[1]) if found else None

    def phase(self, source: str) -> str:
        """Return the phase that progress shows below a cell, or '' before and after it runs."""
        phase = rf"^{self.name}, ([^:]+(?:: [^:]+)?): [^:]*\d s"
        found = re.search(phase, self.output(source), re.MULTILINE)
        return found[1] if found else ""

    def write(self, source: str, text: str) -> None:
        """Click into a cell and write `text` in place of what it holds."""
        editor = self.cell(source).locator(".cm-content")
        editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)
        (number,) = [number for number, old in enumerate(self.sources) if source in old]
        self.sources[number] = text

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Write other values into the parameters cell."""
        (text,) = [text for text in self.sources if text.startswith("profile: str")]
        for name, value in values.items():
            text, changes = re.subn(
                rf"^({name}: [\w |]+ = )\S+", rf"\g<1>{value}", text, flags=re.MULTILINE
            )
            assert changes == 1, name
        self.write("profile: str", text)
        some = next(iter(values))
        content = self.cell("profile: str").locator(".cm-content").text_content()
        assert re.search(rf"{some}: [\w |]+ = {values[some]}", content)


def opened(browser: Any, lab: Lab, name: str, text: str) -> Page:
    """Return a page with the notebook open and its kernel ready.

    The notebook is opened in the file browser, from JupyterLab's index. It has `text` in it.
    """
    notebook = lab.root / "notebooks" / f"{name}.ipynb"
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(f"{lab.url}?token={lab.token}")
    page.locator(
        ".jp-NotebookPanel", has_text="Accelerated PyTorch training: the gallery"
    ).wait_for()
    screenshot(page, "jupyterlab-1-index")
    page.locator(".jp-DirListing-item", has_text=notebook.name).dblclick()
    page.locator(
        ".jp-NotebookPanel:not(.lm-mod-hidden)",
        has_text=text,
    ).wait_for()
    page.locator(
        '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook-ExecutionIndicator[data-status="idle"]'
    ).wait_for()
    cells = json.loads(notebook.read_text())["cells"]
    return Page(page, ["".join(cell["source"]) for cell in cells], name)
