"""Plan of a batch: which notebooks run, with which parameters, and what identifies each.

Bad input is refused here within a second or two: no kernel has been started yet, and torch is not
imported.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.notebooks.batch.notebook_file import check_names, read_notebook
from gallery_lib.system import paths
from gallery_lib.system.hardware import library_version, version

_LIBRARIES = (
    *("torch", "torchvision", "timm", "transformers", "tokenizers", "numpy"),
    *("ipykernel", "nbclient", "papermill"),
)


@dataclass(frozen=True)
class Planned:
    """One notebook of a batch.

    `digest` is the same where notebook, parameters and versions are the same.
    """

    name: str
    path: Path
    parameters: dict[str, Any]
    measures: bool  # whether it compares two variants, so that it must leave results
    digest: str


def notebooks_dir() -> Path:
    """Return the folder of the gallery's notebooks.

    Raises:
        InputError: if the package is installed without its notebooks.
    """
    root = paths.checkout()
    if root is None:
        raise InputError(
            "the notebooks lie in a checkout of the gallery; gallery_lib is installed without one "
            "here. Give paths of notebooks."
        )
    return root / "notebooks"


def _found(names: Sequence[str]) -> list[Path]:
    """Return the paths of the notebooks called `names`; all of the gallery's if `names` is empty.

    A name is that of a gallery notebook, or the path of an `.ipynb` file.
    """
    own: dict[str, Path] = {}
    given = {name: Path(name).resolve() for name in names if name.endswith(".ipynb")}
    given = {name: path for name, path in given.items() if path.is_file()}
    if not names or set(names) - set(given):
        own = {path.stem: path for path in notebooks_dir().glob("*.ipynb")}
    files: dict[str, Path] = {}
    for name in names or sorted(own):
        path = given.get(name) or own.get(name.removesuffix(".ipynb"))
        if path is None:
            raise InputError(
                f"there is no notebook `{name}`.{did_you_mean(name, own)} Known: "
                f"{', '.join(sorted(own))}; or a path.",
                parameter="names",
            )
        if files.setdefault(path.stem, path) != path:
            raise InputError(
                f"two notebooks are called {path.stem}: {files[path.stem]} and {path}. Run them "
                "in two batches.",
                parameter="names",
            )
    return list(files.values())


def profile_values(profile: str | None) -> dict[str, Any]:
    """Return the parameters in `notebooks/profiles/PROFILE.yaml`, which `papermill -f` takes, too.

    Without a profile there are none.
    """
    if not profile:
        return {}
    return yaml.safe_load((notebooks_dir() / "profiles" / f"{profile}.yaml").read_text())


def digest(path: Path, values: Mapping[str, Any]) -> str:
    """Return a digest of the notebook, the scripts beside it, its parameters, and versions.

    The versions are those of the gallery, of Python and of libraries.
    """
    facts: dict[str, Any] = {
        "parameters": dict(values),
        "python": platform.python_version(),
        "gallery_lib": version(),
        **{library: library_version(library) for library in _LIBRARIES},
    }
    result = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for file in (path, *sorted(path.with_suffix("").glob("*.py"))):
        result.update(file.read_bytes())
    return result.hexdigest()[:24]


def plan(
    names: Sequence[str], profile: str | None = None, given: Mapping[str, Any] | None = None
) -> list[Planned]:
    """Return the notebooks called `names` (all if empty), each with its parameters.

    Args:
        names: names of the gallery's notebooks, or paths.
        profile: name of a parameter file in `notebooks/profiles/`; a notebook gets those values
            that it has a parameter for.
        given: more parameters, which win. At least one of the notebooks must have each parameter;
            the others do not get it.

    Raises:
        InputError: for an unknown notebook, and for a parameter that is unknown, badly typed or
            out of range.
    """
    notebooks = {path: read_notebook(path) for path in _found(names)}
    check_names(given or {}, notebooks.values())
    values = {**profile_values(profile), **(given or {})}
    parameters = {path: notebook.fitting(values) for path, notebook in notebooks.items()}
    return [
        Planned(
            name=path.stem,
            path=path,
            parameters=parameters[path],
            measures=notebook.options in ("NotebookConfig", "YourModelConfig"),
            digest=digest(path, parameters[path]),
        )
        for path, notebook in notebooks.items()
    ]
