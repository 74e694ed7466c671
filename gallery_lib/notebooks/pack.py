"""Pack one task as a self-contained archive: notebook, launcher, set-up, package, data commands.

    gallery pack resnet50 --out resnet50.tar.gz

After unpacking on another machine, `bash prepare.sh --run resnet50` in the archive's folder sets up
the environment and runs the notebook. Names in the archive are relative and stay below one folder.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import atomic_write

ROOT_FILES = (
    "LICENSE",
    "pyproject.toml",
    "requirements.lock",
    "environment.yml",
    "prepare.sh",
    "launch_single_task.py",
)

README = """# {title}, accelerated

One task of the accelerated training gallery, by itself: the notebook, the launcher, the helper
package `gallery_lib` and the commands of its data.

    bash prepare.sh --run {name}            # set up, make data, run the notebook, show the result
    bash prepare.sh --lab                   # or open it in JupyterLab and run its cells
    python3 launch_single_task.py --model {name} --compiler-opt

Python 3.11 or newer and, on a machine without a GPU, a C++ compiler are needed beforehand; \
`prepare.sh` names what is
missing. `--data_dir` takes real data; `data_prep/` has the commands for it. Licence: Apache-2.0.
"""


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry without its owner; None for what Python has compiled."""
    if Path(entry.name).name == "__pycache__":
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def pack(name: str, out: Path) -> Path:
    """Write the archive of the task `name` to `out` (a .tar.gz, replaced), and return its path.

    Raises:
        InputError: for an unknown task, a missing folder, and where gallery_lib is installed
            without its checkout.
    """
    task = tasks.get(name)
    if name not in tasks.names():
        raise InputError(
            f"{name} is a task from a file; only the gallery's own tasks can be packed.",
            parameter="task",
        )
    root = paths.checkout()
    if root is None:
        raise InputError(
            "gallery_lib is installed without its checkout, so there is nothing to pack: run this "
            "in the checkout."
        )
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: the folder {out.parent} does not exist.", parameter="out")
    files = [*ROOT_FILES, "gallery_lib", f"notebooks/{name}.ipynb"]
    files += [f"data_prep/{command}.py" for command in task.data_commands]
    readme = README.format(title=task.title, name=name).encode()
    folder = f"gallery-{name}"
    with atomic_write(out, "wb") as written, tarfile.open(fileobj=written, mode="w:gz") as archive:
        for file in files:
            archive.add(root / file, f"{folder}/{file}", filter=_anonymous)
        entry = tarfile.TarInfo(f"{folder}/README.md")
        entry.size = len(readme)
        archive.addfile(entry, io.BytesIO(readme))
    return out
