"""This machine, in the index and in tasks' notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gallery_lib.notebooks.cells.display import display_markdown
from gallery_lib.system import hardware
from gallery_lib.system.hardware import library_version

_LIBRARIES = ("torchvision", "timm", "transformers", "gallery_lib")


def show_machine() -> None:
    """Show this machine, the software on it, and what follows from both."""
    facts = hardware.machine_facts()
    versions = {name: library_version(name) for name in _LIBRARIES}
    software = [f"{name} {version}" for name, version in versions.items() if version]
    display_markdown(
        f"- **This machine**: {hardware.describe(facts)}.\n"
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
