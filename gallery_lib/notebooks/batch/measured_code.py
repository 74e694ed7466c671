"""Digest of the code behind a measured figure; where the digest differs, the figure is stale.

The digest covers the code that decides how long a notebook takes and what it measures. That is its
code cells, the scripts beside it, and the package. Parts of the package that only show, run or pack
notebooks do not count, nor do parts that only other notebooks measure. A stale figure is not wrong:
it was true of the code that it names. Versions of libraries do not count: they stand beside the
figures, and change with the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gallery_lib
from gallery_lib.notebooks.batch.notebook_file import read_notebook

STALE = " (stale)"
"""Mark of a figure that was measured with other code than the present, or with unrecorded code."""
_SOURCES = (".py", ".cu", ".cuh")
_NOT_MEASURED = (
    *("cli", "report", "notebooks/batch", "notebooks/site", "measure/replay", "__main__.py"),
    *("notebooks/jupyterlab.py", "notebooks/pack.py", "notebooks/working_copies.py"),
    *("console/exit_code.py", "console/outlets.py", "console/progress.py"),
    *("console/shown_phase.py", "console/expected_durations.py", "launcher/run_view.py"),
    *("system/extras.py", "system/prepared_python.py", "system/version.py"),
    *("config/__init__.py", "config/commands.py", "config/cluster.py"),
)
_ONLY_FOR = {
    "data_parallel": (
        *("notebooks/cells/data_parallel.py", "measure/comparison/paused_script.py"),
        "measure/comparison/script_turns.py",
    ),
    "communication": (
        *("notebooks/cells/communication.py", "measure/communication", "cluster"),
        "config/communication.py",
    ),
    # It shows figures that measure/replay has measured.
    "performance_data": ("notebooks/cells/performance_data.py",),
}
"""Parts of the package that only the named notebook measures."""


def package_sources(package: Path) -> list[Path]:
    """Return every source file of the package, sorted."""
    return sorted(path for path in package.rglob("*") if path.suffix in _SOURCES)


def scripts_of(notebook: Path) -> list[Path]:
    """Return the scripts in the folder that has the notebook's name, sorted."""
    return sorted((notebook.parent / notebook.stem).glob("*.py"))


def _measured(package: Path, notebook: Path) -> Iterator[Path]:
    others = {path.stem for path in notebook.parent.glob("*.ipynb")} - {notebook.stem}
    left_out = {
        *_NOT_MEASURED,
        *(room for name, rooms in _ONLY_FOR.items() if name != notebook.stem for room in rooms),
        *(f"tasks/{other}.py" for other in others),
    }
    for path in package_sources(package):
        inside = path.relative_to(package)
        around = (folder.as_posix() for folder in inside.parents)
        if left_out.isdisjoint({inside.as_posix(), *around}):
            yield path


def add_files(result: Any, paths: Iterable[Path], folder: Path) -> None:
    """Add each file to a hash, by its name relative to `folder` and its content."""
    for path in paths:
        result.update(
            path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )


def code_digest(notebook: Path, package: Path | None = None) -> str:
    """Return a digest that identifies the code that the notebook measures.

    `package` is the folder of the package; by default, that of `gallery_lib`.

    Raises:
        InputError: for a notebook that cannot be read.
    """
    package = package or Path(gallery_lib.__file__).parent
    result = hashlib.sha256(
        "\0".join(cell.source for cell in read_notebook(notebook).code).encode()
    )
    add_files(result, scripts_of(notebook), notebook.parent)
    add_files(result, _measured(package, notebook), package)
    return result.hexdigest()[:24]


def is_stale(measured: Mapping[str, Any], notebook: Path) -> bool:
    """Return whether a results entry was measured with other code, or with unrecorded code."""
    return measured.get("code") != code_digest(notebook)


def gallery_files(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the files of `benchmarks/gallery.py` in the results folder, with their content.

    There is one file for each machine.
    """
    paths = [*folder.glob("*/gallery.json"), *folder.glob("gallery-*.json")]
    return {path: json.loads(path.read_text()) for path in sorted(paths)}


def newest_results(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest file of `benchmarks/gallery.py` with its content; None without files."""
    files = gallery_files(folder)
    return (
        max(files.items(), key=lambda item: (item[1]["date"], item[0].parent.name))
        if files
        else None
    )
