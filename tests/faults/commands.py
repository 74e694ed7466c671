"""Commands that faults befall: all that train, measure, prepare or report.

A new command is one entry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from made_comparison import FASTER, write
from made_comparison import comparison as made
from tiny_notebooks import write_notebook

from .driver import ROOT, TASKS, Workspace

Words = Callable[[Workspace], list[str]]


def python(*words: str) -> list[str]:
    return [sys.executable, *words]


def train(task: str = "SLOW", *more: str, steps: int = 40) -> Words:
    """Return the launcher's command for one of the faulty tasks."""
    options = [f"--max_steps={steps}", "--log_interval=1", "--threads=1", "--no-evaluate", *more]
    return lambda workspace: python(
        str(ROOT / "launch_single_task.py"),
        *(f"--model={TASKS}:{task}", *options, f"--run_dir={workspace.folder / 'run'}"),
    )


def compare(task: str = "SLOW", *more: str) -> Words:
    options = ["--threads=1", "--rounds=4", "--block_steps=2", "--workers=0", *more]
    return lambda workspace: gallery("compare", f"--model={TASKS}:{task}", *options)


def gallery(*words: str) -> list[str]:
    return python("-m", "gallery_lib", *words)


def batch(source: str = "import time; time.sleep(30)") -> Words:
    def words(workspace: Workspace) -> list[str]:
        notebook = write_notebook(workspace.folder / "notebooks", "one", source)
        return gallery("run", str(notebook), "--out", str(workspace.folder / "batch"))

    return words


_RUN_SCRIPT = """
import sys
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.launcher.job import run_script
body = lambda: [run_script(sys.argv[1], processes=2)] and None
sys.exit(exit_code_of(body, error_prefix="error", interrupted="interrupted: the script is ended"))
"""


def script(source: str) -> Words:
    """Return the command for a script of the reader's own on two processes, as of a notebook."""

    def words(workspace: Workspace) -> list[str]:
        path = workspace.folder / "script.py"
        path.write_text(source)
        return python("-c", _RUN_SCRIPT, str(path))

    return words


def data(command: str, *words: str) -> Words:
    """Return a command of data_prep, which writes into the workspace."""
    return lambda workspace: python(
        str(ROOT / "data_prep" / command), *words, "--out", str(workspace.folder / "data")
    )


def on(maker: Callable[[Path], Path], *words: str) -> Words:
    """Return a `gallery` command on what `maker` writes into the workspace."""
    return lambda workspace: gallery(*words, str(maker(workspace.folder)))


def comparison(folder: Path) -> Path:
    return write(made(FASTER, 20), folder / "comparison").parent


def half(folder: Path) -> Path:
    path = comparison(folder) / "comparison.json"
    path.write_text(path.read_text()[: path.stat().st_size // 2])
    return path.parent


EVERY: Mapping[str, Words] = {
    "train": train(),
    "train on two processes": train("SLOW", "--nproc_per_node", "2"),
    "train, compiled": train("SLOW", "--compiler-opt"),
    "compare": compare(),
    "run a notebook": batch(),
    "run a script on two processes": script(
        "import time, torch.distributed as d\n"
        "d.init_process_group('gloo')\n"
        "d.barrier()\n"
        "time.sleep(8)\n"
        "d.destroy_process_group()\n"
    ),
    "make images": data("mock_imagenet.py"),
    "make text": data("text.py"),
    "make speech": data("mock_speech.py"),
    "show": on(comparison, "show"),
    "list": lambda workspace: gallery("list"),
    "doctor": lambda workspace: gallery("doctor"),
}
"""One command of each kind, for what has to hold of all."""
