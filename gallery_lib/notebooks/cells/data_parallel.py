"""Functions for the notebook `data_parallel`: show its scripts, run them, compare them in turns.

The scripts are files in `notebooks/data_parallel/`. So the shown text is what runs, and it can be
copied.
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import DataParallelNotebookConfig
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_chart, display_markdown, display_table
from gallery_lib.notebooks.cells.task_settings import checked, process_count
from gallery_lib.system import hardware
from gallery_lib.system.paths import checkout

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.script_turns import Script, ScriptTurns

_OTHER_PRECISION = 0.25
"""Part of the first loss by which another precision may change it, in the comparison in turns.

It finds gross errors alone: batch norms over few values amplify the rounding of 16-bit types.
"""
_LEAST_STEPS = 4
"""Steps of an epoch in the comparison in turns; the first one of an epoch does not count."""


def settings(parameters: dict[str, Any] | None = None) -> DataParallelNotebookConfig:
    """Check the notebook's parameters, complete and show them, and return them.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    config = checked(DataParallelNotebookConfig, parameters)
    processes = process_count(config.processes)
    steps = config.images // (config.batch_size * processes)
    if steps < config.log_steps:
        raise InputError(
            f"images={config.images} make {steps} steps an epoch of {config.batch_size} × "
            f"{processes} samples, fewer than log_steps={config.log_steps}, so nothing "
            "would be logged. Use more images or smaller steps.",
            parameter="images",
        )
    config = dataclasses.replace(config, processes=processes)
    display_table([["setting", "value"], *([name, f"{v}"] for name, v in vars(config).items())])
    return config


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


def run(name: str, settings: DataParallelNotebookConfig, processes: int | None = None) -> None:
    """Run the script, which shows its log: with plain Python, or torchrun for `processes`.

    Raises:
        RunFailed: when the script fails.
    """
    from gallery_lib.launcher.job import run_script  # imports torch

    names = ("images", "image_size", "batch_size", "epochs", "log_steps")
    arguments = [f"--{name}={getattr(settings, name)}" for name in names]
    run_script(_script(name), arguments, processes=processes)


def _scripts_in_turns(settings: DataParallelNotebookConfig) -> dict[str, Script]:
    """Return the scripts to compare by name, the baseline first.

    Each step is logged, so the first logged loss is that of the initial weights.
    """
    from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
    from gallery_lib.measure.comparison.script_turns import Script

    several, same = settings.processes or 1, LOSS_TOLERANCE["O0"]
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
        name: Script(_script(script), arguments, conditions, processes, starts_like, limit)
        for name, (script, conditions, processes, starts_like, limit) in table.items()
    }


def compare_in_turns(settings: DataParallelNotebookConfig) -> ScriptTurns:
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
