"""Reference pages of the site: options that `config/` declares, and the package's docstrings.

The docstrings have a page for each room of the package.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

from gallery_lib import config
from gallery_lib.config import documentation, options
from gallery_lib.console.table import markdown_table

_USED_BY = {
    config.TrainConfig: (
        "`python3 launch_single_task.py`, `gallery compare`, and `launch()` in Python."
    ),
    config.LaunchConfig: (
        "`python3 launch_single_task.py`, `gallery compare`, and `launch()` in Python."
    ),
    config.CompareConfig: "`gallery compare`.",
    config.NotebookConfig: (
        "The notebooks of tasks: in their parameters cell, or with `-p NAME VALUE` of `papermill` "
        "and `gallery run`."
    ),
    config.YourModelConfig: "The notebook `your_model`, likewise.",
    config.WalkConfig: "The notebook `data_parallel`, likewise.",
    config.WireConfig: "The notebook `communication`, likewise.",
    config.PerformanceDataConfig: "The notebook `performance_data`, likewise.",
    config.WaysConfig: "`gallery_lib.measure.communication.strategies`, over torchrun.",
    config.ConvergenceConfig: "`gallery_lib.measure.communication.convergence`, over torchrun.",
    config.BatchConfig: "`gallery run`.",
    config.SiteConfig: "`gallery site`.",
    config.BenchConfig: "`gallery bench`.",
    config.LabConfig: "`gallery lab up`, and `Lab()` in Python.",
    config.LabRunConfig: "`gallery lab run`.",
    config.LabNameConfig: "`gallery lab down`.",
    config.SlurmConfig: "`gallery submit slurm`, with those of a training.",
    config.KubernetesConfig: "`gallery submit kubernetes`, with those of a training.",
    config.RecordConfig: "`benchmarks/ddp_lab.py record`.",
    config.ReplayConfig: "`benchmarks/ddp_lab.py run` and `sweep`, and `benchmarks/ddp_replay.py`.",
}
_OPTIONS_HEAD = """# Options

Every option, as `gallery_lib/config/` declares it. On a command line, `batch_size` is \
`--batch_size` or `--batch-size`; a switch
that is on by default is put off with `--no-…`. \
A name or a value that does not exist is refused, with the closest one.
"""
_REFERENCE_HEAD = """# Reference

What the docstrings say, a page for each room of the package; {ref}`genindex` has every name.

What most readers need is in `gallery_lib` itself: `accelerate` (in {doc}`acceleration`), its \
`Config` and the configurations of
runs (in {doc}`config`; {doc}`../options` has their tables), and `launch` (in {doc}`launcher`).
"""


# --------------------------------------------------------------------------------------------------
# Options


def options_page() -> str:
    """Return a page with a table for each class of options, file by file of `config/`."""
    tree = {type(options.default_of(f)): f.name for f in dataclasses.fields(config.Config)}
    parts = [_OPTIONS_HEAD]
    for cls in vars(config).values():
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)) or cls is config.Config:
            continue
        heading = f"`accelerate()`: `config.{tree[cls]}`" if cls in tree else f"`{cls.__name__}`"
        parts += [
            f"## {heading}",
            cls.__doc__ or "",
            _USED_BY.get(cls, ""),
            documentation.options_table(cls),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


# --------------------------------------------------------------------------------------------------
# Docstrings


def rooms(package: Path) -> dict[str, list[str]]:
    """Return the dotted names of the modules in each room of the package.

    A room is a top-level module, or a top-level subpackage with everything in it.
    """
    modules_by_room: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and not any(part.startswith("_") for part in parts):
            modules_by_room.setdefault(parts[0], []).append(".".join([package.name, *parts]))
    return modules_by_room


def _file(package: Path, module: str) -> Path:
    path = package.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def about(path: Path) -> str:
    """Return the first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def room_page(room: str, modules: list[str]) -> str:
    """Return the page of one room; Sphinx's autodoc fills it in."""
    parts = [f"# `{room}`"]
    for module in modules:
        if module != modules[0]:  # the first module's text stands below the title
            parts.append(f"## `{module.partition('.')[2]}`")
        parts.append(
            f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n   :ignore-module-all:\n   "
            ":member-order: bysource\n```"
        )
    return "\n\n".join(parts) + "\n"


def write_pages(package: Path, folder: Path) -> None:
    """Write `options.md` and the pages of `api/` into `folder`."""
    (folder / "options.md").write_text(options_page(), encoding="utf-8")
    (folder / "api").mkdir()
    modules_by_room = rooms(package)
    for room, modules in modules_by_room.items():
        (folder / "api" / f"{room}.md").write_text(room_page(room, modules), encoding="utf-8")
    rows = [
        ["room", "what it is for"],
        *(
            [f"[`{room}`]({room}.md)", about(_file(package, modules_by_room[room][0]))]
            for room in modules_by_room
        ),
    ]
    toctree = "\n".join(["```{toctree}", ":hidden:", *modules_by_room, "```"])
    (folder / "api" / "index.md").write_text(
        "\n\n".join([_REFERENCE_HEAD, markdown_table(rows), toctree]) + "\n", encoding="utf-8"
    )
