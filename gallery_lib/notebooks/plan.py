"""Plan of a batch: which notebooks run, with which parameters, and what identifies each.

papermill takes any name and any type: a misspelt name is a warning in its log, and `batch_size=abc`
is run. A notebook of the gallery names its options class in its metadata, and that class checks
names, types and ranges. Of any other notebook, the names in its cell tagged `parameters` are known,
and values are Python's literals.

Bad input is refused here within a second or two: no kernel has been started yet, and torch is not
imported. Without a profile the standard library is enough: `prepare.sh --run` checks parameters
before there is an environment.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import config
from gallery_lib.config.options import check_value
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import paths
from gallery_lib.system.hardware import library_version, version

_LIBRARIES = (
    *("torch", "torchvision", "timm", "transformers", "tokenizers", "numpy"),
    *("ipykernel", "nbclient", "papermill"),
)


@dataclass(frozen=True)
class Cell:
    """One cell; only code cells have been executed and have outputs."""

    is_code: bool
    source: str
    tags: tuple[str, ...]
    execution_count: int | None
    outputs: list[dict[str, Any]]

    @property
    def error(self) -> tuple[str, str] | None:
        """Return name and value of the first exception in the outputs; None without one."""
        shown = [output for output in self.outputs if output["output_type"] == "error"]
        return (shown[0]["ename"], shown[0]["evalue"]) if shown else None


@dataclass(frozen=True)
class NotebookFile:
    """The cells of a notebook, and the name of its options class."""

    cells: list[Cell]
    options: str | None

    @property
    def code(self) -> list[Cell]:
        """Return the code cells that are not blank."""
        return [cell for cell in self.cells if cell.is_code and cell.source.strip()]

    @property
    def parameters_source(self) -> str:
        """Return the source of the cell tagged `parameters`; '' without one."""
        cells = (cell for cell in self.cells if cell.is_code and "parameters" in cell.tags)
        return next((cell.source for cell in cells), "")

    @property
    def parameters(self) -> list[str]:
        """Return the names of the notebook's parameters."""
        if self.options:
            return [f.name for f in dataclasses.fields(getattr(config, self.options))]
        return re.findall(r"^(\w+)[^=\n]*=(?!=)", self.parameters_source, re.MULTILINE)

    def fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of `values` that the notebook has a parameter for, converted.

        Raises:
            InputError: for a value that does not fit.
        """
        cls = getattr(config, self.options) if self.options else None
        return {
            name: check_value(cls, name, value) if cls else _literal(value)
            for name, value in values.items()
            if name in self.parameters
        }


def _literal(value: Any) -> Any:
    """Return the value that a text is in Python, or the text where it is none."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def read_notebook(path: Path) -> NotebookFile:
    """Return the notebook at `path`.

    Raises:
        InputError: for a missing or damaged notebook, and for another format than 4.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        cells = [
            Cell(
                is_code=cell["cell_type"] == "code",
                source="".join(cell["source"]),
                tags=tuple(cell["metadata"].get("tags", ())),
                execution_count=cell.get("execution_count"),
                outputs=cell.get("outputs", []),
            )
            for cell in values["cells"]
        ]
        metadata = values["metadata"]
        return NotebookFile(cells, metadata.get("gallery", {}).get("options"))
    except FileNotFoundError:
        raise InputError(f"the notebook {path} does not exist.", parameter=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no notebook of format 4 ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None


def check_names(given: Iterable[str], notebooks: Iterable[NotebookFile]) -> None:
    """Raise InputError for a parameter that none of the notebooks has."""
    known = list(dict.fromkeys(name for notebook in notebooks for name in notebook.parameters))
    for name in given:
        if name not in known:
            there = f"Known: {', '.join(known)}." if known else "There are no parameters."
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)} {there}", parameter=name
            )


def check(path: Path, given: Mapping[str, Any]) -> None:
    """Raise InputError for a parameter that the notebook at that path does not take."""
    notebook = read_notebook(path)
    check_names(given, [notebook])
    notebook.fitting(given)


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
        profile: name of a parameter file in `notebooks/profiles/`, which `papermill -f` takes, too;
            a notebook gets those values that it has a parameter for.
        given: more parameters, which win. At least one of the notebooks must have each parameter;
            the others do not get it.

    Raises:
        InputError: for an unknown notebook, and for a parameter that is unknown, badly typed or
            out of range.
    """
    notebooks = {path: read_notebook(path) for path in _found(names)}
    check_names(given or {}, notebooks.values())
    values = dict(given or {})
    if profile:
        import yaml

        file = notebooks_dir() / "profiles" / f"{profile}.yaml"
        values = {**yaml.safe_load(file.read_text()), **values}
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
