"""This machine, and what it has measured last, in the index and in tasks' notebooks."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gallery_lib.console.table import number
from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.system import hardware, paths
from gallery_lib.system.version import library_version

_MOST_FILES = 500
"""Maximum number of comparisons to read, the newest first: a folder of runs may hold years."""
_YOUR_MODEL = re.compile(rf"/cells/\w+/\w+/{re.escape(CELL_FILE)}:TASK$")
_SAME_MACHINE = ("cpu", "isa", "device", "cores")
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "gallery_lib")


def show_machine() -> None:
    """Show this machine, the software on it, and what follows from both."""
    facts = hardware.machine_facts()
    memory = f"{number(facts['memory_bytes'] / 2**30)} GiB"
    versions = {name: library_version(name) for name in _LIBRARIES}
    software = [f"Python {platform.python_version()}"]
    software += [f"{name} {version}" for name, version in versions.items() if version]
    display_markdown(
        f"- **This machine**: {hardware.describe(facts)}, {memory} of memory.\n"
        f"- **Software**: {', '.join(software)}.\n"
        f"- **To know**: {' '.join(_notes(facts))}"
    )


def _notes(facts: Mapping[str, Any]) -> list[str]:
    """Return what follows from the facts for the figures of a notebook."""
    notes = []
    if facts["device"] == "cpu":
        notes.append("There is no GPU here: GPU figures are **not measured**.")
        if not hardware.computes_in_bf16("cpu"):
            notes.append(
                "This CPU has no bfloat16 units: O1 is slower than O0 here, so `amp_level=auto` "
                "chooses O0."
            )
    if hardware.cpp_compiler() is None:
        notes.append(
            "There is no C++ compiler here, which compiling for the CPU needs: install g++."
        )
    return notes or ["The GPU computes, and `amp_level=auto` chooses O1."]


def newest_comparisons(folder: Path, here: Mapping[str, Any]) -> dict[str, Comparison]:
    """Return the newest comparison on one process by notebook, of those below `folder`.

    Comparisons of another machine than `here` are left out, and so are unreadable ones.
    """
    found: dict[str, Comparison] = {}
    files = folder.rglob("comparison.json")
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)[:_MOST_FILES]:
        with contextlib.suppress(InputError):
            comparison = read_comparison(path.parent)
            name = "your_model" if _YOUR_MODEL.search(comparison.task) else comparison.task
            there = comparison.baseline.environment
            is_here = all(there.get(fact) == here.get(fact) for fact in _SAME_MACHINE)
            if is_here and comparison.baseline.world_size == 1:
                found.setdefault(name, comparison)
    return found


def show_results() -> None:
    """Show the newest result that this machine has measured of each notebook."""
    from gallery_lib import tasks
    from gallery_lib.report import style, verdict

    titles = {name: tasks.get(name).title for name in tasks.names()}
    titles["your_model"] = "Your own model"
    found = newest_comparisons(paths.runs_dir(), hardware.machine_facts())
    rows, bars = [["notebook", "speed-up (interval)", "measured with"]], []
    for name, title in titles.items():
        if name not in found:
            continue
        one = found[name]
        conditions = f"{verdict.precision(one.baseline)}, {verdict.batch(one.baseline)}"
        conditions += ", on a busy machine" if one.load and one.load.reasons() else ""
        words = [str(one.speedup)] if one.speedup else []
        words += [one.verdict] if one.verdict != "faster" else []
        rows.append([f"[{title}]({name}.ipynb)", ", ".join(words), conditions])
        bars.append(style.Bar(title, one.speedup, one.verdict))
    if bars:
        bars.sort(key=lambda bar: -bar.ratio.ratio if bar.ratio else 0.0)
        title = "Accelerated backend over PyTorch eager"
        chart = style.Chart(title, rows, lambda: style.ratio_bars(bars, title, "PyTorch eager")[0])
        display_chart(chart, fold=False)
    display_markdown(
        f"Measured on this machine: {len(bars) or 'none'} of {len(titles)} notebooks. Run one, or "
        "all of them with `gallery run`, then this cell again."
    )
