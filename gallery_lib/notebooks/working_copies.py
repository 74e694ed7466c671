"""The reader's copies of the notebooks, which JupyterLab opens: it saves by itself, and what git tracks stays as it is.

Copies lie in `my_notebooks/` beside `notebooks/`, so that links between notebooks and to documents hold. A copy that was
not edited follows its notebook; with its outputs it is kept in `my_notebooks/earlier/`. An edited copy stays, and that
there is a newer notebook is said.
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
_RECORD = ".copied.json"  # what the copies were made of: {name: {"shipped": digest of the file, "cells": digest of its cells}}
_EARLIER = "earlier"


def _cells(notebook: bytes) -> list[dict[str, Any]]:
    """Return the cells; raises ValueError or KeyError for what is no notebook."""
    return json.loads(notebook)["cells"]


def _digest_of_cells(notebook: bytes) -> str:
    """Return a digest of what a reader may edit: kinds and sources of the cells, and nothing that running or saving changes."""
    edited = [[cell["cell_type"], "".join(cell["source"])] for cell in _cells(notebook)]
    return hashlib.sha256(json.dumps(edited).encode()).hexdigest()


def _is_edited(copy: bytes, cells: str) -> bool:
    try:
        return _digest_of_cells(copy) != cells
    except (ValueError, KeyError, TypeError):  # half of a notebook is the reader's, too
        return True


def _keep_outputs(copy: Path) -> None:
    """Move a copy that has outputs to `earlier/`."""
    if any(cell.get("outputs") for cell in _cells(copy.read_bytes())):
        earlier = copy.parent / _EARLIER
        earlier.mkdir(exist_ok=True)
        copy.rename(earlier / f"{copy.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb")


def refresh(root: Path) -> list[str]:
    """Bring the copies of the checkout at `root` up to date; return lines on edited copies of notebooks that have changed since."""
    folder, said = root / FOLDER, []
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
                said.append(
                    f"{FOLDER}/{name} has edits of yours and is of an earlier version; the new one is notebooks/{name}."
                )
                continue
            _keep_outputs(copy)
        shutil.copyfile(shipped, copy)
        record[name] = now
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return said
