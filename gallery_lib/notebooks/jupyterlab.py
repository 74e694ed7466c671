"""Starts JupyterLab in a checkout: at the index of its notebooks, for this machine alone, and with a token.

    python -m gallery_lib.notebooks.jupyterlab FOLDER [options of JupyterLab]

JupyterLab saves a notebook by itself once its cells have run, so it opens copies (working_copies.py).

Port and token are JupyterLab's own: the first free port from 8888 on (JUPYTER_PORT chooses another) and a new token
(JUPYTER_TOKEN). Links between notebooks and documents need the whole checkout as its root folder. What kernels and
JupyterLab say to each other is encrypted where their versions can do that; they warn about it otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.notebooks import working_copies
from gallery_lib.system import paths


def command(folder: Path, options: Sequence[str] = ()) -> list[str]:
    """JupyterLab's command line for the checkout at `folder`, with further options of its own."""
    copies = working_copies.FOLDER
    start = f"{copies}/index.ipynb" if (folder / copies / "index.ipynb").is_file() else copies
    words = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{start}",
    ]
    words += ["--KernelManager.transport_encryption=auto", *options]
    if (
        os.geteuid() == 0
    ):  # in a container, say: Jupyter wants to be told, and there is seldom a browser
        words = list(dict.fromkeys([*words, "--allow-root", "--no-browser"]))
    return [sys.executable, "-m", "jupyterlab", *words]


def root_for(checkout: Path) -> Path:
    """Return the folder that JupyterLab opens: the checkout; where it is another user's, a folder of one's own with links into it."""
    if paths.ours(checkout):
        return checkout
    own = Path.home() / "gallery"
    own.mkdir(exist_ok=True)
    for each in checkout.iterdir():
        if (
            not each.name.startswith(".")
            and each.name not in (working_copies.FOLDER, "runs")
            and not (own / each.name).exists()
        ):
            (own / each.name).unlink(missing_ok=True)  # a link to where the checkout was
            (own / each.name).symlink_to(each)
    return own


if __name__ == "__main__":
    root = root_for(Path(sys.argv[1]).resolve())
    said = [
        f"The notebooks open as copies, in {working_copies.FOLDER}/: edits and outputs are saved there.",
        *working_copies.refresh(root),
    ]
    print(*said, sep="\n", flush=True)
    started = command(root, sys.argv[2:])
    os.execv(started[0], started)  # so that a signal reaches JupyterLab itself
