"""Check the rules of this house: where a module lies, what it imports, how long it is.

    python -m tests.project.house

`import_direction` declares the floors of the rooms, `sizes` the limits on files and functions.
Prints each fault, and ends with exit code 1 if there are any. Ruff checks docstrings, names and
the length of lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.project import import_direction, sizes

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
        *sizes.faults(checkout),
    ]


if __name__ == "__main__":
    messages = faults(Path(__file__).resolve().parents[2])
    print("\n".join(messages), end="\n" if messages else "")
    sys.exit(bool(messages))
