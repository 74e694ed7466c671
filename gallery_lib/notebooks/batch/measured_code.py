"""The code that a figure was measured with, as a digest kept beside it: where the digest differs, the figure is stale.

What counts is what decides how long a notebook takes and what it measures: its code cells, the scripts beside it, and
the package less what only shows, runs and packs notebooks, and less what other notebooks measure. A stale figure is not wrong: it
was true of the code that it names. Versions of libraries do not count: they stand beside the figures, and change with
the machine.
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
"""The mark of a figure that was measured with other code than what is here, or with code that was not recorded."""
_SOURCES = (".py", ".cu", ".cuh")
_NOT_MEASURED = (
    *("cli", "report", "notebooks/batch", "notebooks/site", "measure/replay", "__main__.py"),
    *("notebooks/jupyterlab.py", "notebooks/pack.py", "notebooks/working_copies.py"),
    *("console/exit_code.py", "console/outlets.py", "console/progress.py"),
    *("console/expected_durations.py", "launcher/run_view.py"),
    *("system/extras.py", "system/prepared_python.py", "system/version.py"),
    *("config/__init__.py", "config/commands.py", "config/cluster.py"),
)
_ONLY_FOR = {
    "data_parallel": ("notebooks/cells/data_parallel.py",),
    "communication": (
        *("notebooks/cells/communication.py", "measure/communication", "cluster"),
        "config/communication.py",
    ),
    "performance_data": (
        "notebooks/cells/performance_data.py",
    ),  # it shows what measure/replay measured
}
"""What one notebook measures and no other."""


def package_sources(package: Path) -> list[Path]:
    """Every source file of the package."""
    return sorted(path for path in package.rglob("*") if path.suffix in _SOURCES)


def scripts_of(notebook: Path) -> list[Path]:
    """The scripts in the folder that has the notebook's name."""
    return sorted((notebook.parent / notebook.stem).glob("*.py"))


def _measured(package: Path, notebook: Path) -> Iterator[Path]:
    others = {path.stem for path in notebook.parent.glob("*.ipynb")} - {notebook.stem}
    left_out = [
        *_NOT_MEASURED,
        *(room for name, rooms in _ONLY_FOR.items() if name != notebook.stem for room in rooms),
    ]
    for path in package_sources(package):
        inside = path.relative_to(package)
        of_another = inside.parent == Path("tasks") and path.stem in others
        if not of_another and not any(inside.is_relative_to(room) for room in left_out):
            yield path


def add_files(result: Any, paths: Iterable[Path], folder: Path) -> None:
    """Add the files, by their names from `folder` on and their contents, to a hash."""
    for path in paths:
        result.update(
            path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )


def code_digest(notebook: Path, package: Path | None = None) -> str:
    """Names the code that the notebook measures. Raises InputError for a notebook that cannot be read."""
    package = package or Path(gallery_lib.__file__).parent
    result = hashlib.sha256(
        "\0".join(cell.source for cell in read_notebook(notebook).code).encode()
    )
    add_files(result, scripts_of(notebook), notebook.parent)
    add_files(result, _measured(package, notebook), package)
    return result.hexdigest()[:24]


def is_stale(measured: Mapping[str, Any], notebook: Path) -> bool:
    """Whether the entry of a results file was measured with other code than what is here, or does not say with which."""
    return measured.get("code") != code_digest(notebook)


def gallery_files(folder: Path) -> dict[Path, dict[str, Any]]:
    """What benchmarks/gallery.py has written into the folder of results: a file for each machine, and its content."""
    paths = [*folder.glob("*/gallery.json"), *folder.glob("gallery-*.json")]
    return {path: json.loads(path.read_text()) for path in sorted(paths)}


def newest_results(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest of these files, and its content."""
    files = gallery_files(folder)
    return (
        max(files.items(), key=lambda item: (item[1]["date"], item[0].parent.name))
        if files
        else None
    )
