"""Phases of a run, from imports to its end, which rank 0 writes to `phases.json`.

Rank 0 notes each phase when it begins, and whoever watches the run reads the file. A change of
phase costs one small file, written atomically; a steady step notes nothing. Without `phases.json`
the processes are still importing their libraries.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write, written_if_possible
from gallery_lib.system.json_files import read_json
from gallery_lib.system.processes import now

PHASES_FILE = "phases.json"

IMPORTS = "imports"
DATA = "data"
MODEL = "model"
WARM_UP = "warm-up"
COMPILING = "compiling"
BUILDING = "building own kernels"
PROBE = "gradient probe"
TRAINING = "training"
TURNS = "turns"
ROOFLINE = "roofline"
EVALUATION = "evaluation"
ENDING = "ending"

# Phases that are kept. A model with graph breaks everywhere compiles hundreds of times.
_LONGEST_LIST = 500


@dataclass(frozen=True)
class Phase:
    """One phase of a run; when it began, `count` of `total` steps were done."""

    name: str
    began: float  # as returned by `processes.now()`
    count: int = 0
    total: int | None = None


class PhaseLog:
    """Log of the phases of a run, in its directory; it writes nothing unless `enabled`."""

    def __init__(self, run_dir: Path, *, enabled: bool = True) -> None:
        self._path, self._enabled = run_dir / PHASES_FILE, enabled
        self._phases: list[Phase] = []
        self._graphs, self._steady = 0, Phase(IMPORTS, 0.0)

    def begin(self, name: str, *, count: int = 0, total: int | None = None) -> None:
        """Note that a phase begins, which ends the previous one."""
        self._steady = Phase(name, now(), count, total)
        self._note(self._steady)

    def _note(self, phase: Phase) -> None:
        if not self._enabled:
            return
        self._phases = [*self._phases[-_LONGEST_LIST:], phase]
        with written_if_possible(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._path) as file:
                json.dump([vars(phase) for phase in self._phases], file)

    def compilation_began(self) -> None:
        """Note that the compilation of a graph begins."""
        self._graphs += 1
        self._note(Phase(f"{COMPILING}, graph {self._graphs}", now()))

    def build_began(self) -> None:
        """Note that the build of own kernels begins."""
        self._note(Phase(BUILDING, now()))

    def compilation_ended(self) -> None:
        """Note that the phase before the compilation, or build, goes on."""
        self._note(dataclasses.replace(self._steady, began=now()))


def read_phases(run_dir: Path | str) -> list[Phase]:
    """Return the phases of a run so far, in order; none before its imports are done."""
    try:
        return read_json(Path(run_dir) / PHASES_FILE, list[Phase], again="")
    except (OSError, InputError):  # not written yet, or not a file of ours
        return []
