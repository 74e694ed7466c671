"""Check the rules of this house: where a module lies, what it imports, how large its room is.

    python -m tests.project.house

`import_direction` declares the floors of the rooms, `budgets` how large they may be. Prints the
table of the rooms and each fault, and ends with exit code 1 if there are any. Ruff checks
docstrings, names and the length of lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.project import budgets, import_direction

LOOSE = ("__init__.py", "__main__.py", "errors.py", "stats.py")
"""Modules at the root of the package; everything else lies in a room."""


def misplaced_modules(package: Path) -> list[str]:
    """Return a message for each module that lies loose at the root of the package."""
    names = {path.name for path in package.glob("*.py")}
    return [
        *(
            f"{package.name}/{name}: lies outside the rooms. Move it into the room it belongs to"
            for name in sorted(names.difference(LOOSE))
        ),
        *(
            f"{package.name}/{name}: is gone. Remove it from LOOSE in tests/project/house.py"
            for name in LOOSE
            if name not in names
        ),
    ]


def faults(checkout: Path) -> list[str]:
    """Return a message for each breach of a rule in the checkout."""
    package = checkout / "gallery_lib"
    return [
        *misplaced_modules(package),
        *import_direction.wrong_imports(package),
        *budgets.faults(checkout),
    ]


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    messages = faults(checkout)
    print(budgets.table(checkout), *messages, sep="\n")
    sys.exit(bool(messages))
