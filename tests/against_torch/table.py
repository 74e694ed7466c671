"""Writer of docs/guides/what_works.md, with verdicts by kind of model, loader, batch, loop, launch.

A cell is one case: a training in plain PyTorch, and the same with the product.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from . import product
from .case import Case
from .compare import BOUND
from .launches import LAUNCHES, ROOT, Server
from .loaders import BATCHES, LOADERS
from .loops import LOOPS
from .models import MODELS
from .optimizers import OPTIMIZERS
from .run import AS_COMPILE, FAILED, RAISES, REFUSED, ROUNDED, SAME, Verdict, run

PAGE = ROOT / "docs" / "guides" / "what_works.md"
BASE = Case(call="parts", config="eager", samples=12, batch_size=3)
ONE: dict[str, Any] = {}
COMPILED: dict[str, Any] = {"config": "aot"}
TWO: dict[str, Any] = {"launch": "two"}
COLUMNS = {"one process": ONE, "compiled": COMPILED, "two processes": TWO}
INTRODUCTION = """\
# What works

Each cell is a training that was run twice: in plain PyTorch, and with `accelerate()`. Losses, \
parameters, buffers,
gradients, samples, keys, hooks, optimizer states and learning rates of both were compared, on \
every process.
`.venv/bin/python -m tests.against_torch --table` writes this page; `.venv/bin/python -m \
tests.against_torch --hours 1` draws
combinations of the rows.

- **same**: equal to the bit.
- **same but for rounding**: apart by no more than {bound:g} of the largest value of a tensor \
(float32).
- **as torch.compile**: what `torch.compile` makes of the same model, which is not what eager \
PyTorch does.
- **refused**: `accelerate()` or a step raises an `InputError`; the line stands below the table.
- **as in plain PyTorch, an error**: PyTorch itself cannot do it.

*One process* and *two processes* are `Config()` without its compiler; *compiled* has the \
compiler's tracing and
PyTorch's own operators instead of generated code, so that only what the compiler changes on \
purpose can differ.
"""


@dataclass(frozen=True)
class Section:
    """A table of the page: a row per name of a field of Case, a column per set of changes."""

    title: str
    field: str
    names: list[str]
    columns: dict[str, dict[str, Any]]

    def case(self, name: str, column: str) -> Case | None:
        """Return the case of a cell, or None where there is no such case."""
        values = {**self.columns[column], self.field: name}
        if self.field == "model" and MODELS[name].optimizers:
            values["optimizer"] = MODELS[name].optimizers[0]
        several = LAUNCHES[values.get("launch", "one")].world > 1
        if self.field == "loader" and LOADERS[name].one_process and several:
            return None
        if name == "lbfgs":
            values["loop"] = "closure"
        if name == "sparse_adam":
            values["model"] = "sparse"
        return dataclasses.replace(BASE, **values)


def _sections() -> list[Section]:
    both = {"one process": ONE, "two processes": TWO}
    any_launch, two = {"any": ONE}, {"two processes": TWO}
    return [
        Section("Models", "model", list(MODELS), COLUMNS),
        Section("Loaders", "loader", [n for n in LOADERS if not LOADERS[n].rare], both),
        Section("Batches", "batch", list(BATCHES), both),
        Section("Loops", "loop", list(LOOPS), COLUMNS),
        Section("Optimizers", "optimizer", list(OPTIMIZERS), both),
        Section("Launches", "launch", [n for n, k in LAUNCHES.items() if k.share], any_launch),
        Section("Ways of averaging gradients", "comm", list(product.COMMS), two),
    ]


def write(jobs: int = 2) -> int:
    """Run every cell and write the page; return 1 when a cell failed."""
    server, failed = Server(), False
    text = [INTRODUCTION.format(bound=BOUND[torch.float32])]
    with ThreadPoolExecutor(jobs) as pool:
        for section in _sections():
            cells = [(name, column) for name in section.names for column in section.columns]
            cases = [section.case(*cell) for cell in cells]
            found = pool.map(lambda case: case and run(case, server), cases)
            verdicts = dict(zip(cells, found, strict=True))
            for verdict in verdicts.values():
                if verdict is not None and verdict.outcome == FAILED:
                    failed = True
                    print(f"FAILED --case '{verdict.case.json()}'", *verdict.lines[:4], sep="\n  ")
            text.append(_table(section, verdicts))
    PAGE.write_text("\n".join(text))
    print(f"{PAGE} written")
    return int(failed)


def _table(section: Section, verdicts: dict[tuple[str, str], Verdict | None]) -> str:
    notes: list[str] = []
    head = [section.field, *section.columns]
    lines = [f"## {section.title}\n", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in section.names:
        cells = [_cell(verdicts[name, column], notes) for column in section.columns]
        lines.append(f"| {' | '.join([name.replace('_', ' '), *cells])} |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines)


def _cell(verdict: Verdict | None, notes: list[str]) -> str:
    if verdict is None:
        return "–"
    if verdict.outcome in (SAME, ROUNDED, AS_COMPILE):
        return verdict.outcome
    if verdict.outcome == RAISES:
        return "as in plain PyTorch, an error"
    note = f"`{verdict.lines[0]}`"
    if note not in notes:
        notes.append(note)
    word = "refused" if verdict.outcome == REFUSED else "**differs**"
    return f"{word} ({notes.index(note) + 1})"
