"""Pack one task as a self-contained archive: notebook, launcher, set-up, package, data commands.

    gallery pack resnet50 --out resnet50.tar.gz

After unpacking on another machine, `bash prepare.sh --run resnet50` in the archive's folder sets up
the environment and runs the notebook. The same sources always give a byte-identical archive: names
are sorted, times and owners are left out. Names in the archive are relative and stay below one
folder.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
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
_LEFT_OUT = ("__pycache__", ".ipynb_checkpoints")

README = """# {title}, accelerated

One task of the accelerated training gallery, by itself: the notebook, the launcher, the helper \
package `gallery_lib`
and the commands of its data.

    bash prepare.sh --run {name}            # set up, make mock data, run the notebook, \
print the comparison
    bash prepare.sh --lab                   # or open it in JupyterLab and run its cells
    python3 launch_single_task.py --model {name} --amp_level=O1 --compiler-opt

Python 3.11 or newer and, on a machine without a GPU, a C++ compiler are needed beforehand; \
`prepare.sh` names what is
missing. `--data_dir` takes real data; `data_prep/` has the commands for it. Licence: Apache-2.0.
"""


def _files(root: Path, name: str) -> Iterator[tuple[str, bytes, bool]]:
    """Yield (relative name, content, executable) for each file of the archive."""
    task = tasks.get(name)
    files = [root / file for file in ROOT_FILES]
    files += [path for path in (root / "gallery_lib").rglob("*") if path.is_file()]
    files += [root / "data_prep" / f"{command}.py" for command in task.data_commands]
    files.append(root / "notebooks" / f"{name}.ipynb")
    for path in files:
        if any(part in _LEFT_OUT for part in path.parts):
            continue
        if not path.is_file():
            raise InputError(
                f"{path} is missing: pack a task from a whole checkout.", parameter=str(path)
            )
        yield path.relative_to(root).as_posix(), path.read_bytes(), path.suffix == ".sh"
    yield "README.md", README.format(title=task.title, name=name).encode(), False


def pack(name: str, out: Path) -> Path:
    """Write the archive of the task `name` to `out` (a .tar.gz) and return its path.

    An existing file is replaced.

    Raises:
        InputError: for an unknown task, for another file ending, for a missing folder, and outside
            a checkout.
    """
    if name not in tasks.names():
        tasks.get(name)  # raises with the closest name
        raise InputError(
            f"{name} is a task from a file; only the gallery's own tasks can be packed.",
            parameter="task",
        )
    if not out.name.endswith((".tar.gz", ".tgz")):
        raise InputError(f"--out {out} must end with .tar.gz.", parameter="out")
    root = paths.checkout()
    if root is None:
        raise InputError(
            "gallery_lib is installed without its checkout, so there is nothing to pack: run this "
            "in the checkout."
        )
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: the folder {out.parent} does not exist.", parameter="out")
    folder = f"gallery-{name}"
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for relative, content, executable in sorted(_files(root, name)):
            entry = tarfile.TarInfo(f"{folder}/{relative}")
            entry.size, entry.mode = len(content), 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(content))
    with atomic_write(out, "wb") as file:
        file.write(buffer.getvalue())
    return out
