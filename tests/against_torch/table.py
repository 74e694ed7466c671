"""Writer of docs/guides/what_works.md, with verdicts by kind of model, loader, batch, loop, launch.

A cell is one case: a training in plain PyTorch, and the same with the product. The page's
introduction stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import product
from .battery import DRAWN_LOADERS, valid
from .case import Case
from .launches import LAUNCHES, ROOT, Server
from .loaders import BATCHES
from .loops import LOOPS
from .models import MODELS
from .optimizers import OPTIMIZERS
from .run import AS_COMPILE, FAILED, RAISES, REFUSED, ROUNDED, SAME, Verdict, run

PAGE = ROOT / "docs" / "guides" / "what_works.md"
BASE = Case(call="parts", config="eager", samples=12, batch_size=3)
ONE, COMPILED, TWO = "one process", "compiled", "two processes"
COLUMNS: dict[str, dict[str, Any]] = {
    ONE: {}, COMPILED: {"config": "aot"}, TWO: {"launch": "two"}, "any": {}
}  # fmt: skip
TABLES: dict[str, tuple[str, Iterable[str], tuple[str, ...]]] = {
    "Models": ("model", MODELS, (ONE, COMPILED, TWO)),
    "Loaders": ("loader", DRAWN_LOADERS, (ONE, TWO)),
    "Batches": ("batch", BATCHES, (ONE, TWO)),
    "Loops": ("loop", LOOPS, (ONE, COMPILED, TWO)),
    "Optimizers": ("optimizer", OPTIMIZERS, (ONE, TWO)),
    "Launches": ("launch", [name for name in LAUNCHES if LAUNCHES[name].share], ("any",)),
    "Ways of averaging gradients": ("comm", product.COMMS, (TWO,)),
}
"""Field of Case, names and columns of each table."""


def _case(field: str, name: str, column: str) -> Case | None:
    """Return the case of a cell, or None where there is no such case."""
    values = {**COLUMNS[column], field: name}
    if field == "model" and MODELS[name].optimizers:
        values["optimizer"] = MODELS[name].optimizers[0]
    values |= {"lbfgs": {"loop": "closure"}, "sparse_adam": {"model": "sparse"}}.get(name, {})
    case = dataclasses.replace(BASE, **values)
    return case if valid(case) else None


def write(jobs: int = 2) -> int:
    """Run every cell and write the page; return 1 when a cell failed."""
    server, failed = Server(), False
    text = [PAGE.read_text().partition("\n## ")[0]]
    with ThreadPoolExecutor(jobs) as pool:
        for title, (field, names, columns) in TABLES.items():
            notes: list[str] = []
            text += [f"## {title}\n", f"| {' | '.join([field, *columns])} |"]
            text.append(f"|{'---|' * (1 + len(columns))}")
            for name in names:
                cases = [_case(field, name, column) for column in columns]
                verdicts = list(pool.map(lambda case: case and run(case, server), cases))
                cells = [name.replace("_", " "), *(_cell(verdict, notes) for verdict in verdicts)]
                text.append(f"| {' | '.join(cells)} |")
                for verdict in verdicts:
                    if verdict is not None and verdict.outcome == FAILED:
                        failed = True
                        print(verdict.report(4))
            text += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1)), ""]
    PAGE.write_text("\n".join(text))
    print(f"{PAGE} written")
    return int(failed)


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
