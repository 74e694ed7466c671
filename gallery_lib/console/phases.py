"""The phases of a run, from imports to its end: rank 0 notes each in `phases.json` when it begins, and who watches the run reads them.

Nothing is noted in a steady step: a change of phase costs one small file, written atomically. Without `phases.json` the
processes are still importing what they need.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.errors import InputError
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
TRAFFIC = "memory traffic of a step"
EVALUATION = "evaluation"
ENDING = "ending"

_LONGEST_LIST = (
    500  # phases that are kept: a model whose graph breaks everywhere compiles hundreds of times
)


@dataclass(frozen=True)
class Phase:
    """One phase. `number` counts graphs that are compiled, from 1; `count` of `total` steps were done when it began."""

    name: str
    began: float  # as `processes.now()` says it
    number: int | None = None
    count: int = 0
    total: int | None = None

    @property
    def label(self) -> str:
        """Return the phase as it is shown: `compiling, graph 2`, say."""
        return self.name if self.number is None else f"{self.name}, graph {self.number}"


class PhaseLog:
    """Notes the phases of a run in its directory; does nothing in other ranks than 0."""

    def __init__(self, run_dir: Path, *, enabled: bool = True) -> None:
        self._path = run_dir / PHASES_FILE
        self._enabled = enabled
        self._phases: list[Phase] = []
        self._graphs = 0

    def begin(
        self, name: str, *, number: int | None = None, count: int = 0, total: int | None = None
    ) -> None:
        """Note that a phase begins, and with it that the one before has ended."""
        if not self._enabled:
            return
        self._phases = [*self._phases[-_LONGEST_LIST:], Phase(name, now(), number, count, total)]
        new = self._path.with_name(f".{PHASES_FILE}.new")
        with contextlib.suppress(OSError):  # a full disk is the business of what has to be written
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps([vars(phase) for phase in self._phases]))
            new.replace(self._path)

    def compilation_began(self) -> None:
        """Note that a graph is being compiled."""
        self._graphs += 1
        self.begin(COMPILING, number=self._graphs)

    def build_began(self) -> None:
        """Note that kernels of ours are being built."""
        self.begin(BUILDING)

    def compilation_ended(self) -> None:
        """Note that what was going on before the compilation, or build, goes on."""
        before = next(
            (phase for phase in reversed(self._phases) if phase.name not in (COMPILING, BUILDING)),
            None,
        )
        if before is not None:
            self.begin(before.name, count=before.count, total=before.total)


def read_phases(run_dir: Path | str) -> list[Phase]:
    """Return the phases of a run so far, in order; none before its imports are done."""
    try:
        return read_json(Path(run_dir) / PHASES_FILE, list[Phase], again="")
    except (OSError, InputError):  # there is none yet; or it is not ours
        return []


def seconds_by_phase(phases: Sequence[Phase], ended: float) -> dict[str, float]:
    """Return how long each phase took, by its label, in a run that ended then; what came back later counts together."""
    found: dict[str, float] = {}
    ends = [*(phase.began for phase in phases[1:]), ended]
    for phase, end in zip(phases, ends, strict=True):
        found[phase.label] = found.get(phase.label, 0.0) + end - phase.began
    return found
