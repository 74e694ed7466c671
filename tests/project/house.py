"""Check the rules of this house: what a module imports, how large its room is.

    python -m tests.project.house

`import_direction` declares the floors of the rooms, `budgets` how large they may be. Prints the
table of the rooms and each fault, and ends with exit code 1 if there are any. Ruff checks
docstrings, names and the length of lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.project import budgets, import_direction


def faults(checkout: Path) -> list[str]:
    """Return a message for each breach of a rule in the checkout."""
    package = checkout / "gallery_lib"
    return [*import_direction.wrong_imports(package), *budgets.faults(checkout)]


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    messages = faults(checkout)
    print(budgets.table(checkout), *messages, sep="\n")
    sys.exit(bool(messages))
