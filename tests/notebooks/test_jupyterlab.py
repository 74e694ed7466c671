"""Notebooks in real kernels and in JupyterLab, which leaves those under git as they are.

Progress is one output, a killed kernel ends all that it started, and commands are found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from chromium import chromium, screenshot
from jupyter_client.manager import run_kernel, start_new_kernel
from notebooks.batch.runner import MARK, Runner
from tiny_notebooks import write_notebook
from tiny_task import config
from worker_processes import wait_until

from gallery_lib.cli.prepare import kernel_command
from gallery_lib.notebooks import jupyterlab
from gallery_lib.notebooks.jupyterlab import command
from gallery_lib.system.processes import end_supervised, start_supervised


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout with two notebooks."""
    return checkout_with(tmp_path, "print(1)")


def checkout_with(folder: Path, *sources: str) -> Path:
    """Make a checkout below `folder` with an index, and the notebook `one` with these cells."""
    root = folder / "checkout"
    write_notebook(root / "notebooks", "index", "print(1)")
    write_notebook(root / "notebooks", "one", *sources)
    return root


def test_jupyterlab_is_for_this_machine_alone_and_opens_at_the_copy_of_the_index(
    root: Path,
) -> None:
    words = command(root)
    assert words[1:5] == ["-P", "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"]
    assert f"--ServerApp.root_dir={root}" in words
    assert "--LabApp.default_url=/lab/tree/my_notebooks" in words
    jupyterlab.refresh(root)
    words = command(root, ["--no-browser"])
    assert "--LabApp.default_url=/lab/tree/my_notebooks/index.ipynb" in words
    assert words.count("--no-browser") == 1
    # JupyterLab makes a token, or takes JUPYTER_TOKEN: everybody can read a command line.
    assert not any("token=" in word for word in words)


def test_a_copy_follows_its_notebook_and_what_was_run_or_edited_is_kept(root: Path) -> None:
    shipped, copy = (root / name / "one.ipynb" for name in ("notebooks", jupyterlab.FOLDER))
    assert jupyterlab.refresh(root) == []
    assert copy.read_bytes() == shipped.read_bytes()
    mine = copy.read_text().replace("print(1)", "print(2 * 3)")
    copy.write_text(mine)
    assert jupyterlab.refresh(root) == []
    assert copy.read_text() == mine  # while its notebook is the same
    better = shipped.read_text().replace("print(1)", "print(1)  # better")
    shipped.write_text(better)
    (said,) = jupyterlab.refresh(root)
    (kept,) = (root / "my_notebooks" / "earlier").glob("one-*.ipynb")
    assert said.endswith(f"changed: your copy of before is {kept.relative_to(root)}.")
    assert (kept.read_text(), copy.read_bytes()) == (mine, shipped.read_bytes())
    shipped.write_text(better.replace("better", "still better"))
    assert jupyterlab.refresh(root) == []  # nobody has touched the copy
    assert copy.read_bytes() == shipped.read_bytes()


def test_copies_lie_at_the_depth_of_the_notebooks_and_git_ignores_them(checkout: Path) -> None:
    assert Path(jupyterlab.FOLDER).name == jupyterlab.FOLDER  # so that links hold
    assert f"/{jupyterlab.FOLDER}/" in (checkout / ".gitignore").read_text().splitlines()


OPEN = """
c.IdentityProvider.token = c.ServerApp.token = ""
c.ServerApp.identity_provider_class = "jupyter_server.auth.identity.IdentityProvider"
c.ServerApp.ip, c.ServerApp.allow_remote_access = "0.0.0.0", True
"""
"""A user's configuration of Jupyter for servers that are protected otherwise."""


@dataclass
class Lab:
    """A running JupyterLab with its checkout, and a runner that finds all of its processes."""

    root: Path
    url: str
    token: str
    own: Runner


def answering(runtime: Path) -> dict[str, Any] | None:
    """Return what the server has written into `runtime`, or None while it does not answer."""
    for path in runtime.glob("jpserver-*.json"):
        with contextlib.suppress(json.JSONDecodeError, urllib.error.URLError):
            told: dict[str, Any] = json.loads(path.read_text())
            urllib.request.urlopen(f"{told['url']}api?token={told['token']}", timeout=30)
            return told
    return None


@pytest.fixture(scope="module")
def lab(
    checkout: Path, kernel: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Yield a JupyterLab that was started as `prepare.sh --lab` does.

    Its kernels have the cores of the test that comes first, so each is marked `several_cores`.
    """
    folder, own = tmp_path_factory.mktemp("lab"), Runner({}, uuid.uuid4().hex)
    values = config("SLEEPING", max_steps=1000, run_dir=str(folder / "run"))
    sources = [line.format(values=values, helpers=checkout / "tests/helpers") for line in CELLS]
    root, runtime = checkout_with(folder, *sources), folder / "runtime"
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    env = {name: str(folder / name) for name in (*folders, "IPYTHONDIR")}
    for name in ("jupyter_server_config.py", "jupyter_lab_config.py"):
        Path(env["JUPYTER_CONFIG_DIR"]).mkdir(exist_ok=True)
        Path(env["JUPYTER_CONFIG_DIR"], name).write_text(OPEN)
    env |= {"JUPYTER_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(checkout), MARK: own.mark}
    words = [sys.executable, "-m", "gallery_lib.notebooks.jupyterlab", str(root), "--no-browser"]
    with (folder / "log.txt").open("w") as log:
        process = start_supervised(words, {**kernel, **env}, stdout=log, stderr=log)
    try:
        told = wait_until(lambda: answering(runtime), 60)
        yield Lab(root, told["url"], told["token"], own)
    finally:
        end_supervised(process)
    assert own.left() == []


@pytest.mark.slow
@pytest.mark.several_cores
def test_no_configuration_of_the_users_opens_the_server(lab: Lab) -> None:
    address = f"{lab.url}api/contents"
    assert address.startswith("http://127.0.0.1:")
    of_another_host = urllib.request.Request(
        f"{address}?token={lab.token}", headers={"Host": "else.where"}
    )
    for asked in (address, of_another_host):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked, timeout=30)


# --------------------------------------------------------------------------------------------------
# In a real browser

CELLS = (
    "from gallery_lib import launch\nfrom gallery_lib.config import *\n"
    "launch({values!r}, LaunchConfig(nproc_per_node=2), show_log=False)",
    "import sys\nsys.path.insert(0, '{helpers}')\nfrom made_comparison import FASTER, comparison\n"
    "from gallery_lib import notebook\none = comparison(FASTER, 40)\n"
    "notebook.show_comparison(one)\nnotebook.show_losses(one)",
)
"""The cells of `one`: a training that lasts, and what a comparison shows."""


class Page:
    """The notebook in the browser, by what a reader does and sees."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def cell(self, number: int) -> Any:
        """Return a cell of the notebook in front."""
        cells = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell"
        return self.page.locator(cells).nth(number)

    def menu(self, name: str, item: str) -> None:
        """Choose an item of the menu bar."""
        self.page.locator(".lm-MenuBar-item", has_text=name).click()
        self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def outputs(self, number: int) -> list[str]:
        """Return the texts below a cell."""
        return self.cell(number).locator(".jp-OutputArea-output").all_text_contents()

    def prompt(self, number: int) -> str:
        """Return what stands before a cell: `[ ]:`, `[*]:` while it runs, `[1]:`."""
        return str(self.cell(number).locator(".jp-InputPrompt").text_content())

    def ran(self, number: int) -> bool:
        """Return whether the cell has run to its end."""
        return bool(re.search(r"\[\d+\]", self.prompt(number)))

    def run_all(self) -> None:
        """Run all cells, again where the page has lost the first try with a kernel's connection."""
        for _ in range(12):
            self.menu("Run", "Run All Cells")
            with contextlib.suppress(AssertionError):
                wait_until(lambda: "*" in self.prompt(0), 5)
                return
        raise AssertionError("no cell began to run")


def ready(lab: Lab) -> set[str]:
    """Return the notebooks whose kernels have started and are connected to the page.

    The page shows a kernel as idle before that, and what is run then is lost.
    """
    with urllib.request.urlopen(f"{lab.url}api/sessions?token={lab.token}", timeout=30) as answer:
        found = [(Path(session["path"]).stem, session["kernel"]) for session in json.load(answer)]
    return {
        name
        for name, kernel in found
        if kernel["connections"] and kernel["execution_state"] == "idle"
    }


@pytest.mark.browser
@pytest.mark.several_cores
@pytest.mark.timeout(300)
def test_a_cell_shows_its_phase_and_is_interrupted_and_tables_are_folded(
    lab: Lab,
) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(f"{lab.url}?token={lab.token}")
        front = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        front.filter(has_text="print(1)").wait_for()  # the index, which opens by itself
        page.locator(".jp-DirListing-item", has_text="one.ipynb").dblclick()
        front.filter(has_text="made_comparison").wait_for()
        wait_until(lambda: ready(lab) == {"index", "one"}, 60)
        front.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').wait_for()
        shown, before, phases = Page(page), set(lab.own.left()), []

        def training() -> bool:
            phases.extend(text.partition(":")[0] for text in shown.outputs(0))
            return "training" in phases

        shown.run_all()
        wait_until(training, 120)
        assert "imports" in phases
        started = set(lab.own.left()) - before
        ports = {
            link.laddr.ip
            for process in lab.own.left()
            for link in process.net_connections()
            if link.status == psutil.CONN_LISTEN
        }
        assert len(started) >= 3 and ports == {"127.0.0.1"}  # supervisor, two workers
        shown.menu("Kernel", "Interrupt Kernel")
        wait_until(lambda: not started & set(lab.own.left()), 10)
        wait_until(lambda: shown.ran(0), 20)
        (line,) = shown.outputs(0)[-1].strip().splitlines()
        assert line.startswith("Interrupted: the run was stopped before its end, and all its ")

        shown.cell(1).locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        wait_until(lambda: shown.ran(1), 60)
        screenshot(page, "jupyterlab-comparison")
        assert "parity passed" in "\n".join(shown.outputs(1))
        assert shown.cell(1).locator(".jp-RenderedImage img").count() == 1
        details = shown.cell(1).locator("details").first
        table = details.locator("th", has_text="parity check")
        assert not table.is_visible()
        details.locator("summary").click()
        assert table.is_visible()
        errors = shown.cell(1).locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        assert errors.all_text_contents() == []
        page.keyboard.press("ControlOrMeta+s")
        copy = lab.root / "my_notebooks" / "one.ipynb"
        wait_until(lambda: "image/png" in copy.read_text(), 20)
        assert "image/png" not in (lab.root / "notebooks" / "one.ipynb").read_text()


# --------------------------------------------------------------------------------------------------
# Kernels without JupyterLab


CODE = "from gallery_lib import launch\nfrom gallery_lib.config import *\nlaunch({!r}, {})"


@pytest.mark.slow
@pytest.mark.several_cores
def test_progress_is_one_output_and_killing_the_kernel_ends_every_process(tmp_path: Path) -> None:
    manager, client = start_new_kernel(kernel_name="python3")
    kernel, shown = psutil.Process(manager.provisioner.pid), []  # type: ignore[attr-defined]
    short = config("SLEEPING", max_steps=6, run_dir=str(tmp_path / "short"))
    client.execute_interactive(
        CODE.format(short, "show_log=False"), timeout=90, output_hook=shown.append
    )
    kinds = ("display_data", "update_display_data")
    states: list[Any] = [message for message in shown if message["msg_type"] in kinds]
    assert [message["msg_type"] for message in states].count("display_data") == 1
    labels = [m["content"]["data"]["text/plain"].partition(":")[0] for m in states]
    assert labels[0] == "imports" and "training" in labels
    assert re.match(r"done in \d+ s", labels[-1])  # the last state is what a saved notebook holds
    assert len({m["content"]["transient"]["display_id"] for m in states}) == 1

    values = config("SLEEPING", max_steps=1000, run_dir=str(tmp_path / "run"))
    client.execute(CODE.format(values, "LaunchConfig(nproc_per_node=2)"))
    steps = tmp_path / "run" / "steps.jsonl"
    wait_until(lambda: steps.exists() and steps.read_text(), 90)
    started = kernel.children(recursive=True)
    assert len(started) >= 3  # supervisor, two workers
    os.kill(kernel.pid, 9)
    wait_until(lambda: not any(map(_is_alive, started)), 10)
    client.stop_channels()


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_python_in_a_shell_line_is_the_notebooks_own(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = kernel_command(Path(sys.executable))
    at = command.index("--sys-prefix")
    command[at : at + 1] = ["--prefix", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    # The PATH of a JupyterLab that was started without an active environment.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    shown: list[Any] = []
    cell = (
        "!python -c 'import sys; print(sys.prefix)'\n"
        "!python ../launch_single_task.py --version\n"
        "!gallery --version"
    )
    with run_kernel(kernel_name="gallery", cwd=str(checkout / "notebooks")) as client:
        client.execute_interactive(cell, timeout=120, output_hook=shown.append)
    printed = "".join(message["content"].get("text", "") for message in shown)
    prefix, *versions = printed.split()
    assert Path(prefix).resolve() == Path(sys.prefix).resolve()
    assert versions.count("gallery_lib") == 2
