"""Functions for the notebook `data_parallel`: show its scripts, compare them by line, run them.

The scripts are files in `notebooks/data_parallel/`. So the shown text is what runs, and it can be
copied.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.config import WalkConfig, options
from gallery_lib.console.table import markdown_table
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_markdown
from gallery_lib.notebooks.cells.kernel_parameters import kernel_parameters
from gallery_lib.system import hardware
from gallery_lib.system.paths import checkout

_LINE = re.compile(
    r"^Epoch: (\d+), Step: (\d+), Loss: ([\d.]+|nan|inf), Throughputs: ([\d.]+) samples/s$"
)


@dataclass(frozen=True)
class WalkSettings:
    """The notebook's parameters with everything decided."""

    images: int
    image_size: int
    batch_size: int
    epochs: int
    log_steps: int
    processes: int

    def arguments(self) -> list[str]:
        """Return the command-line options for the scripts."""
        names = ("images", "image_size", "batch_size", "epochs", "log_steps")
        return [f"--{name}={getattr(self, name)}" for name in names]


@dataclass(frozen=True)
class ScriptRun:
    """One run of a script.

    `lines` holds (epoch, step, loss, samples per second of all processes) for every line that the
    script logged.
    """

    title: str
    processes: int
    lines: list[tuple[int, int, float, float]]


def settings(parameters: dict[str, Any] | None = None) -> WalkSettings:
    """Check the notebook's parameters, complete and show them, and return the settings.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    config = options.from_mapping(
        WalkConfig, kernel_parameters() if parameters is None else parameters
    )
    gpus = hardware.gpu_count()
    devices = gpus or hardware.cores()
    images, image_size, batch_size = (6400, 224, 64) if gpus else (128, 64, 8)
    result = WalkSettings(
        images=config.images or images,
        image_size=config.image_size or image_size,
        batch_size=config.batch_size or batch_size,
        epochs=config.epochs,
        log_steps=config.log_steps,
        processes=config.processes or min(devices, 8),
    )
    if result.processes > devices:
        raise InputError(
            f"processes={result.processes}: this host has {devices} device(s).",
            parameter="processes",
        )
    steps = result.images // (result.batch_size * result.processes)
    if steps < result.log_steps:
        raise InputError(
            f"images={result.images} make {steps} steps an epoch of {result.batch_size} × "
            f"{result.processes} samples, fewer than log_steps={result.log_steps}, so nothing "
            "would be logged. Use more images or smaller steps.",
            parameter="images",
        )
    display_markdown(
        markdown_table(
            [["setting", "value"], *([name, str(value)] for name, value in vars(result).items())]
        )
    )
    return result


def _script(name: str) -> Path:
    root = checkout()
    if root is None:
        raise InputError(
            "the scripts of this notebook lie beside it in a checkout; gallery_lib is installed "
            "without one here."
        )
    return root / "notebooks" / "data_parallel" / f"{name}.py"


def show_script(name: str) -> None:
    """Show the whole script."""
    display_markdown(f"`{name}.py`\n\n```python\n{_script(name).read_text()}```")


def show_diff(before: str, after: str) -> None:
    """Show the differences between two scripts as a unified diff."""
    old, new = (_script(name).read_text().splitlines(keepends=True) for name in (before, after))
    difference = "".join(difflib.unified_diff(old, new, f"{before}.py", f"{after}.py", n=1))
    display_markdown(f"```diff\n{difference}```")


def run(name: str, settings: WalkSettings, processes: int | None = None) -> ScriptRun:
    """Run the script and return what it logged.

    It runs with plain Python, or with torchrun if `processes` are given.

    Raises:
        RunFailed: when the script fails.
    """
    from gallery_lib.launcher.script import run_script  # imports torch

    matches = [
        _LINE.match(line)
        for line in run_script(_script(name), settings.arguments(), processes=processes)
    ]
    lines = [(int(m[1]), int(m[2]), float(m[3]), float(m[4])) for m in matches if m]
    return ScriptRun(name, processes or 1, lines)


def show_table(*runs: ScriptRun) -> None:
    """Show the first and last logged line of every run, and the last step of an epoch."""
    rows = [
        [
            "script",
            "processes",
            "last step logged in an epoch",
            "first line",
            "last line",
            "loss, first → last",
        ]
    ]
    for run in runs:
        first, last = run.lines[0], run.lines[-1]
        steps = max(step for _, step, _, _ in run.lines)
        rates = [f"{line[3]:.1f} samples/s" for line in (first, last)]
        rows.append(
            [run.title, str(run.processes), str(steps), *rates, f"{first[2]:.2f} → {last[2]:.2f}"]
        )
    display_markdown(markdown_table(rows))
