"""Start JupyterLab at the index of a checkout's notebooks, on localhost only and with a token.

    python -m gallery_lib.notebooks.jupyterlab FOLDER [options of JupyterLab]

JupyterLab saves a notebook on its own after its cells have run, so it opens copies
(working_copies.py).

JupyterLab chooses port and token itself. The port is the first free one from 8888 on (JUPYTER_PORT
chooses another), the token is a new one (or JUPYTER_TOKEN). Links between notebooks and documents
need the whole checkout as root folder. Traffic between JupyterLab and its kernels is encrypted
where their versions support encryption; other versions warn about it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.notebooks import working_copies
from gallery_lib.system import paths


def command(folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return JupyterLab's command line for the checkout at `folder`.

    Args:
        folder: root folder that JupyterLab serves.
        options: further options for JupyterLab itself.
    """
    copies = working_copies.FOLDER
    start = f"{copies}/index.ipynb" if (folder / copies / "index.ipynb").is_file() else copies
    words = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{start}",
    ]
    words += ["--KernelManager.transport_encryption=auto", *options]
    # Root usually means a container: Jupyter must be told to allow root, and a browser is rare.
    if os.geteuid() == 0:
        words = list(dict.fromkeys([*words, "--allow-root", "--no-browser"]))
    return [sys.executable, "-m", "jupyterlab", *words]


def root_for(checkout: Path) -> Path:
    """Return the root folder for JupyterLab: the checkout, or a folder of links into it.

    The folder of links, `~/gallery`, is used where the checkout belongs to another user or is
    read-only.
    """
    if paths.ours(checkout):
        return checkout
    own = Path.home() / "gallery"
    own.mkdir(exist_ok=True)
    for entry in checkout.iterdir():
        if (
            not entry.name.startswith(".")
            and entry.name not in (working_copies.FOLDER, "runs")
            and not (own / entry.name).exists()
        ):
            (own / entry.name).unlink(missing_ok=True)  # a broken link: the checkout has moved
            (own / entry.name).symlink_to(entry)
    return own


if __name__ == "__main__":
    root = root_for(Path(sys.argv[1]).resolve())
    lines = [
        (
            f"The notebooks open as copies, in {working_copies.FOLDER}/: edits and outputs are "
            "saved there."
        ),
        *working_copies.refresh(root),
    ]
    print(*lines, sep="\n", flush=True)
    started = command(root, sys.argv[2:])
    os.execv(started[0], started)  # exec, so that a signal reaches JupyterLab itself
