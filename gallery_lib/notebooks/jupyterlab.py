"""Start JupyterLab at the index of a checkout's notebooks, on localhost only and with a token.

    python -m gallery_lib.notebooks.jupyterlab FOLDER [options of JupyterLab]

JupyterLab saves a notebook on its own after its cells have run, so it opens working copies, and
files that git tracks stay. Copies lie in `my_notebooks/` beside `notebooks/`, so links between
notebooks and to documents still work. An unedited copy follows its notebook; if the old copy has
outputs, it moves to `my_notebooks/earlier/`. An edited copy stays, and a message names the newer
notebook.

JupyterLab chooses port and token itself. The port is the first free one from 8888 on (JUPYTER_PORT
chooses another), the token is a new one (or JUPYTER_TOKEN). The user's own configuration of Jupyter
holds, but cannot open the server to others (access_token.py). Links between notebooks and documents
need the whole checkout as root folder. Traffic between JupyterLab and its kernels is encrypted
where their versions support encryption; other versions warn about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gallery_lib.system import paths
from gallery_lib.system.processes import PYTHON

FOLDER = "my_notebooks"
# Sources of the copies: {name: {"shipped": digest of the file, "cells": digest of its cells}}.
_RECORD = ".copied.json"
_EARLIER = "earlier"
CLOSED = (
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.sock=",
    "--ServerApp.identity_provider_class=gallery_lib.notebooks.access_token.AlwaysToken",
    "--ServerApp.allow_remote_access=False",
    "--ServerApp.allow_origin=",
    "--ServerApp.allow_origin_pat=",
    "--ServerApp.disable_check_xsrf=False",
)
"""Words that win over configuration files: no other machine, page or user reaches the server."""


def command(folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return JupyterLab's command line for the checkout at `folder`.

    Args:
        folder: root folder that JupyterLab serves.
        options: further options for JupyterLab itself.
    """
    start = f"{FOLDER}/index.ipynb" if (folder / FOLDER / "index.ipynb").is_file() else FOLDER
    words = [
        *CLOSED,
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{start}",
    ]
    words += ["--KernelManager.transport_encryption=auto", *options]
    # Root usually means a container: Jupyter must be told to allow root, and a browser is rare.
    if os.geteuid() == 0:
        words = list(dict.fromkeys([*words, "--allow-root", "--no-browser"]))
    return [*PYTHON, "-m", "jupyterlab", *words]


def root_for(checkout: Path) -> Path:
    """Return the root folder for JupyterLab: the checkout, or a folder of links into it.

    The folder of links, `~/gallery`, is used where the checkout belongs to another user or is
    read-only.
    """
    if paths.ours(checkout):
        return checkout
    own = paths.home() / "gallery"
    own.mkdir(exist_ok=True)
    for entry in checkout.iterdir():
        if (
            not entry.name.startswith(".")
            and entry.name not in (FOLDER, "runs")
            and not (own / entry.name).exists()
        ):
            (own / entry.name).unlink(missing_ok=True)  # a broken link: the checkout has moved
            (own / entry.name).symlink_to(entry)
    return own


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


if __name__ == "__main__":
    root = root_for(Path(sys.argv[1]).resolve())
    lines = [
        (f"The notebooks open as copies, in {FOLDER}/: edits and outputs are saved there."),
        *refresh(root),
    ]
    print(*lines, sep="\n", flush=True)
    started = command(root, sys.argv[2:])
    os.execv(started[0], started)  # exec, so that a signal reaches JupyterLab itself
