"""Functions for the notebook `data_parallel`: show its scripts, run them, compare them in turns.

The scripts are files in `notebooks/data_parallel/`. So the shown text is what runs, and it can be
copied.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import DataParallelNotebookConfig
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_chart, display_markdown, display_table
from gallery_lib.notebooks.cells.kernel_parameters import checked
from gallery_lib.system import hardware
from gallery_lib.system.paths import checkout

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.script_turns import Script, ScriptTurns

_SIZES = ("images", "image_size", "batch_size", "log_steps", "block_steps")
_ON_A_GPU, _ON_A_CPU = (6400, 224, 64, 5, 10), (16, 48, 4, 1, 1)
"""Sizes that are not given, by device. On two cores they keep the notebook below three minutes."""
_OTHER_PRECISION = 0.25
"""Part of the first loss by which another precision may change it, in the comparison in turns.

It finds gross errors alone: batch norms over few values amplify the rounding of 16-bit types.
"""
_LEAST_STEPS = 4
"""Steps of an epoch in the comparison in turns; the first one of an epoch does not count."""


@dataclass(frozen=True)
class WalkSettings:
    """The notebook's parameters with everything decided."""

    images: int
    image_size: int
    batch_size: int
    epochs: int
    log_steps: int
    processes: int
    rounds: int
    block_steps: int

    def arguments(self) -> list[str]:
        """Return the command-line options for the scripts."""
        names = ("images", "image_size", "batch_size", "epochs", "log_steps")
        return [f"--{name}={getattr(self, name)}" for name in names]


def settings(parameters: dict[str, Any] | None = None) -> WalkSettings:
    """Check the notebook's parameters, complete and show them, and return the settings.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    config = checked(DataParallelNotebookConfig, parameters)
    gpus = hardware.gpu_count()
    devices = gpus or hardware.cores()
    processes = config.processes or min(devices, 8)
    defaults = zip(_SIZES, _ON_A_GPU if gpus else _ON_A_CPU, strict=True)
    sizes = {name: getattr(config, name) or value for name, value in defaults}
    if config.images is None:  # two lines of the log for each process
        least = 2 * sizes["log_steps"] * sizes["batch_size"] * processes
        sizes["images"] = max(sizes["images"], least)
    result = WalkSettings(**sizes, epochs=config.epochs, processes=processes, rounds=config.rounds)
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
    display_table([["setting", "value"], *([name, f"{v}"] for name, v in vars(result).items())])
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


def run(name: str, settings: WalkSettings, processes: int | None = None) -> None:
    """Run the script, which shows its log: with plain Python, or torchrun for `processes`.

    Raises:
        RunFailed: when the script fails.
    """
    from gallery_lib.launcher.script import run_script  # imports torch

    run_script(_script(name), settings.arguments(), processes=processes)


def _scripts_in_turns(settings: WalkSettings) -> dict[str, Script]:
    """Return the scripts to compare by name, the baseline first.

    Each step is logged, so the first logged loss is that of the initial weights.
    """
    from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
    from gallery_lib.measure.comparison.script_turns import Command, Script

    several, same = settings.processes, LOSS_TOLERANCE["O0"]
    batch = settings.batch_size * several
    images = max(settings.images // batch, _LEAST_STEPS) * batch
    arguments = [
        f"--images={images}",
        f"--image_size={settings.image_size}",
        f"--batch_size={settings.batch_size}",
        "--epochs=1000000",  # until it is ended
        "--log_steps=1",
    ]
    low = "fp16" if hardware.gpu_count() else "bf16"
    share = f"other batches: each of {several} processes takes its share"
    batches, like = (share, None) if several > 1 else ("same batches", "native")
    together, alone = f"several ({several})", "mixed_precision (1)"
    table: dict[str, tuple[str, str, int | None, str | None, float]] = {
        "native": ("native", "PyTorch eager in fp32", None, None, 0.0),
        "accelerated": ("accelerated", "fp32; same batches", None, "native", same),
        together: ("several", f"fp32; {batches}", several, like, same),
        alone: ("mixed_precision", f"{low}; same batches", None, "native", _OTHER_PRECISION),
    }
    if several > 1:
        mixed = ("mixed_precision", f"{low}; {batches}", several, together, _OTHER_PRECISION)
        table[f"mixed_precision ({several})"] = mixed
    return {
        name: Script(Command(_script(script), arguments, processes), conditions, starts_like, limit)
        for name, (script, conditions, processes, starts_like, limit) in table.items()
    }


def compare_in_turns(settings: WalkSettings) -> ScriptTurns:
    """Start all scripts, and let one at a time go on, in turns; return what they logged.

    Raises:
        RunFailed: when a script fails, or logs nothing for too long.
    """
    from gallery_lib.measure.comparison import script_turns

    return script_turns.compare(
        _scripts_in_turns(settings), rounds=settings.rounds, lines=settings.block_steps
    )


def show_turns(turns: ScriptTurns) -> None:
    """Show how many times as fast as `native` each script is: a figure, a table and notes."""
    from gallery_lib.report import plots

    display_chart(plots.script_turns(turns), fold=False)
    notes = [
        *plots.script_notes(turns),
        "`native` is PyTorch eager in fp32. In brackets stands the number of processes.",
        "Mixed precision is not the precision of `native`: part of its gain is the precision.",
    ]
    if "several (1)" not in turns.scripts:
        notes.append(
            "`several` has other batches than `native`: each process takes its share. So its "
            "losses differ."
        )
    display_markdown("\n".join(f"- {note}" for note in notes))
