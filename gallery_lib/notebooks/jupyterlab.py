"""Start JupyterLab at the index of a checkout's notebooks, on localhost only and with a token.

    python -m gallery_lib.notebooks.jupyterlab FOLDER [options of JupyterLab]

JupyterLab saves a notebook on its own after its cells have run, so it opens working copies, and
files that git tracks stay. Copies lie in `my_notebooks/` beside `notebooks/`, so links between
notebooks and to documents still work. Once a notebook has changed, a new copy takes the place of
the old one; what was run or edited there moves to `my_notebooks/earlier/`.

JupyterLab chooses port and token itself. The port is the first free one from 8888 on (JUPYTER_PORT
chooses another), the token is a new one (or JUPYTER_TOKEN). The user's own configuration of Jupyter
holds, but cannot open the server to others; a password in it opens this server, too. Links between
notebooks and documents need the whole checkout as root folder. Traffic between JupyterLab and its
kernels is encrypted where their versions support encryption; other versions warn about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import Bunch, default, validate

from gallery_lib.system.processes import PYTHON

FOLDER = "my_notebooks"
_RECORD = ".copied.json"  # {name: digest of the notebook that its copy was made of}
CLOSED = (
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.sock=",
    "--ServerApp.identity_provider_class=gallery_lib.notebooks.jupyterlab.AlwaysToken",
    "--ServerApp.allow_remote_access=False",
    "--ServerApp.allow_origin=",
    "--ServerApp.allow_origin_pat=",
    "--ServerApp.disable_check_xsrf=False",
)
"""Words that win over configuration files: no other machine, page or user reaches the server."""


class AlwaysToken(PasswordIdentityProvider):
    """Identity provider with the configured token, or a new one in place of an empty one."""

    @default("token")
    def _token_default(self) -> str:
        return super()._token_default() or self._new_token()

    @validate("token")
    def _never_empty(self, proposal: Bunch) -> str:
        return proposal["value"] or self._new_token()

    def _new_token(self) -> str:
        self.token_generated = True  # then Jupyter shows it in the address
        return secrets.token_hex(24)


def command(folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return JupyterLab's command line, with `folder` as root and further `options`."""
    start = f"{FOLDER}/index.ipynb" if (folder / FOLDER / "index.ipynb").is_file() else FOLDER
    words = [
        *CLOSED,
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{start}",
        "--KernelManager.transport_encryption=auto",
        *options,
    ]
    # Root usually means a container: Jupyter must be told to allow root, and a browser is rare.
    if os.geteuid() == 0:
        words = list(dict.fromkeys([*words, "--allow-root", "--no-browser"]))
    return [*PYTHON, "-m", "jupyterlab", *words]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def refresh(root: Path) -> list[str]:
    """Make the working copies of the checkout at `root`; return a message for each moved one."""
    folder, messages = root / FOLDER, []
    folder.mkdir(exist_ok=True)
    record: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    for shipped in sorted((root / "notebooks").glob("*.ipynb")):
        copy, digest, copied = folder / shipped.name, _digest(shipped), record.get(shipped.name)
        if copy.exists() and copied == digest:
            continue
        if copy.exists() and _digest(copy) != copied:
            earlier = folder / "earlier" / f"{copy.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb"
            earlier.parent.mkdir(exist_ok=True)
            copy.rename(earlier)
            messages.append(
                f"notebooks/{shipped.name} has changed: your copy of before is "
                f"{earlier.relative_to(root)}."
            )
        shutil.copyfile(shipped, copy)
        record[shipped.name] = digest
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return messages


if __name__ == "__main__":
    root = Path(sys.argv[1]).resolve()
    lines = [f"The notebooks open as copies, in {FOLDER}/: edits and outputs are saved there."]
    print(*lines, *refresh(root), sep="\n", flush=True)
    started = command(root, sys.argv[2:])
    os.execv(started[0], started)  # exec, so that a signal reaches JupyterLab itself
