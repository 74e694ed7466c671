"""This machine, and the newest result of each notebook, in the index and in tasks' notebooks."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from gallery_lib.console.table import markdown_table, number
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.report.tables import folded
from gallery_lib.system import hardware, paths
from gallery_lib.system.version import library_version

_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "gallery_lib")


def show_machine() -> None:
    """Show this machine in three lines, with all facts folded."""
    facts = hardware.machine_facts()
    memory = f"{number(facts['memory_bytes'] / 2**30)} GiB"
    about = {**facts, "memory": memory, "isa": ", ".join(facts["isa"])}
    del about["memory_bytes"], about["hostname_hash"]
    shown = ([name, str(value)] for name, value in about.items() if value not in (None, ""))
    versions = {name: library_version(name) for name in _LIBRARIES}
    software = [f"Python {platform.python_version()}"]
    software += [f"{name} {version}" for name, version in versions.items() if version]
    lines = [
        f"- **Machine**: {hardware.describe(facts)}, {memory} of memory.",
        f"- **Software**: {', '.join(software)}.",
        f"- **To know**: {' '.join(_notes(facts))}",
    ]
    table = markdown_table([["this machine", ""], *shown])
    display_markdown("\n".join(lines) + f"\n\n{folded('All facts', table)}")


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


def show_results() -> None:
    """Show the newest result of each notebook that measures.

    Results in the folder of runs come first. For other notebooks, the committed result of the
    machine nearest to this one is shown.
    """
    from gallery_lib import tasks
    from gallery_lib.notebooks.batch import latest

    titles = {name: tasks.get(name).title for name in tasks.names()}
    titles["your_model"] = "Your own model"
    here = hardware.machine_facts()
    own = latest.own_results(paths.runs_dir(), titles, here)
    root = paths.checkout()
    committed = latest.nearest(root / "benchmarks" / "results", here) if root else None
    everyones = {**(committed.speedups(titles) if committed else {}), **own}
    results = [everyones[name] for name in titles if name in everyones]
    if not results:
        display_markdown(
            "Nothing has been measured yet: run a notebook, or all of them with `gallery run`."
        )
        return
    display_chart(latest.chart(results), fold=False)
    measured_here = sum(result.machine == latest.HERE for result in results)
    notes = [
        f"Measured on this machine: {measured_here or 'none'} of {len(titles)} notebooks. Run "
        "one, then this cell again."
    ]
    notes += latest.notes(own.values(), here["git"])
    if committed and set(everyones) - set(own):
        notes.append(
            f"The others were {committed.described}: the machine nearest to this one in the "
            "repository."
        )
    display_markdown("\n\n".join(notes))
