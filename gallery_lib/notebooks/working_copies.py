"""Working copies of the notebooks, which JupyterLab opens and saves; files that git tracks stay.

Copies lie in `my_notebooks/` beside `notebooks/`, so links between notebooks and to documents still
work. An unedited copy follows its notebook; if the old copy has outputs, it moves to
`my_notebooks/earlier/`. An edited copy stays, and a message says that there is a newer notebook.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

FOLDER = "my_notebooks"
# Sources of the copies: {name: {"shipped": digest of the file, "cells": digest of its cells}}.
_RECORD = ".copied.json"
_EARLIER = "earlier"


def _cells(notebook: bytes) -> list[dict[str, Any]]:
    """Return the cells of a notebook; raise ValueError or KeyError for other content."""
    return json.loads(notebook)["cells"]


def _digest_of_cells(notebook: bytes) -> str:
    """Return a digest of the kinds and sources of the cells.

    A reader may edit these. Running or saving a notebook does not change the digest.
    """
    edited = [[cell["cell_type"], "".join(cell["source"])] for cell in _cells(notebook)]
    return hashlib.sha256(json.dumps(edited).encode()).hexdigest()


def _is_edited(copy: bytes, cells: str) -> bool:
    try:
        return _digest_of_cells(copy) != cells
    except (ValueError, KeyError, TypeError):  # a damaged copy is the reader's work, too
        return True


def _keep_outputs(copy: Path) -> None:
    """Move a copy that has outputs to `earlier/`."""
    if any(cell.get("outputs") for cell in _cells(copy.read_bytes())):
        earlier = copy.parent / _EARLIER
        earlier.mkdir(exist_ok=True)
        copy.rename(earlier / f"{copy.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb")


def refresh(root: Path) -> list[str]:
    """Update the working copies of the checkout at `root`; return messages for the user.

    There is a message for each edited copy whose notebook has changed since.
    """
    folder, messages = root / FOLDER, []
    folder.mkdir(exist_ok=True)
    record: dict[str, dict[str, str]] = {}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    for shipped in sorted((root / "notebooks").glob("*.ipynb")):
        content, copy, name = shipped.read_bytes(), folder / shipped.name, shipped.name
        now = {"shipped": hashlib.sha256(content).hexdigest(), "cells": _digest_of_cells(content)}
        if copy.exists():
            made_of = record.get(name, {"shipped": "", "cells": ""})
            if made_of["shipped"] == now["shipped"]:
                continue
            if _is_edited(copy.read_bytes(), made_of["cells"]):
                messages.append(
                    f"{FOLDER}/{name} has edits of yours and is of an earlier version; the new one "
                    f"is notebooks/{name}."
                )
                continue
            _keep_outputs(copy)
        shutil.copyfile(shipped, copy)
        record[name] = now
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return messages
