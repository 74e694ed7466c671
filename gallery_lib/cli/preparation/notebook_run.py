"""`--run`: find a notebook, check its parameters, execute it and show what it measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.cli.preparation.children import attend, supervised
from gallery_lib.cli.preparation.options import suggestion
from gallery_lib.cli.preparation.progress import detail, say
from gallery_lib.errors import InputError
from gallery_lib.system import paths


def find_notebook(name: str, root: Path, start_folder: Path) -> Path:
    """Return the path of the notebook `name`: its name, a file name, or a path to it.

    Raises:
        InputError: with the closest name, where there is none.
    """
    for path in (start_folder / name, root / name):
        if path.suffix == ".ipynb" and path.is_file():
            return path.parent.resolve() / path.name
    stem = Path(name).name.removesuffix(".ipynb")
    path = root / "notebooks" / f"{stem}.ipynb"
    if "/" not in name and path.is_file():
        return path
    known = sorted(path.stem for path in (root / "notebooks").glob("*.ipynb"))
    if not known:
        raise InputError(f"--run {name}: there are no notebooks in notebooks/.", parameter="run")
    raise InputError(
        f"--run {name}: no such notebook.{suggestion(stem, known)}\n"
        f"    There are: {' '.join(known)}",
        parameter="run",
    )


def check_parameters(notebook: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise InputError for a parameter that the notebook does not take, as `gallery run` does."""
    if pairs:
        from gallery_lib.notebooks.batch import parameters

        parameters.check(notebook, dict(pairs))


def run_notebook(
    notebook: Path, parameters: Sequence[tuple[str, str]], python: Path, root: Path, runs: Path
) -> int:
    """Execute the notebook in a new folder of runs and show its results; return its exit code."""
    all_runs = Path(os.environ.get("GALLERY_RUNS_DIR") or runs).absolute() / "notebooks"
    folder = paths.free_name(all_runs, f"{time.strftime('%Y%m%d-%H%M%S')}-{notebook.stem}")
    folder.mkdir(parents=True)
    executed = folder / notebook.name
    words: list[str | Path] = ["-m", "gallery_lib.notebooks.batch.live_notebook"]
    words += [notebook, executed, "-k", "gallery", "--cwd", root / "notebooks", "--log-output"]
    for name, value in parameters:
        words += ["-p", name, value]
    code = supervised(python, words, environment={"GALLERY_RUNS_DIR": str(folder)})
    if code == 0:
        say("")
        code = attend([python, "-m", "gallery_lib.cli.main", "show", folder])
        say("")
    else:
        detail("the notebook failed: its last cell with output says why")
    detail(f"executed notebook: {executed}")
    detail(f"results:           {folder}")
    return code
