"""Check that imports inside `gallery_lib` only ever point downwards, floor by floor.

Reads the source with `ast`, so that imports inside functions count as well, and so do
`importlib.import_module("gallery_lib.…")` calls. A room imports from the floors below it, and not
from its neighbours. The package's own `__init__.py`, which exports lazily from every floor, is the
one exception. `python -m tests.project.house` prints each wrong import with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FLOORS: tuple[dict[str, str], ...] = (
    {
        "errors": "base class of every error that is raised on purpose",
        "stats": "percentiles, geometric means, intervals of ratios, the order of turns",
    },
    {
        "config": "every option, declared once; how options are checked, parsed and listed",
        "system": "this machine and process: folders, hardware, child processes, JSON files",
    },
    {
        "console": "what a person sees: tables, progress, messages, exit codes",
        "kernels": "own operators: CUDA and C++, references, what compiles and launches them",
    },
    {
        "comm": "process group, DistributedDataParallel, `accelerate_ddp`, wire formats, the tuner",
        "optim": "optimizers whose step is fused or never waits for the device, gradient scaling",
    },
    {
        "cluster": "several hosts on one machine: `gallery lab`",
        "compiler": "the compiler behind a registry, its cache, graph passes",
        "data": "data sets as files; `loading/`: batches on the device, divided among ranks",
    },
    {
        "checkpoint": "state of a training: saved in the background, found whole, gone on from",
        "memory": "host allocator; whether a model gains from channels_last",
    },
    {
        "tasks": "the eleven tasks, one file each with its model, and what tasks of a domain share",
        "tune": "choice of layout and compiler by measurement on a real batch",
    },
    {
        "acceleration": "`accelerate(model, loader, optimizer, scheduler, config)`",
        "adapters": "callbacks for Trainer, Lightning and Fabric",
        "plug": "`import gallery_lib.plug`: the same, for loops that another library drives",
    },
    {"train": "one training run: loop, session, checkpoints and results"},
    {"launcher": "start, watch and end the processes of a run"},
    {"measure": "comparisons, benches, the variants in them, communication, replay"},
    {"trial": "a script of the reader's, unmodified, in both forms: `gallery try`"},
    {"report": "the verdict, tables and plots"},
    {"notebooks": "calls of notebook cells, batches, archives, JupyterLab"},
    {"cli": "the `gallery` command, `launch_single_task.py`, and what `prepare.sh` does"},
    {"__main__": "`python3 -m gallery_lib`, which is `gallery`"},
)
"""Rooms from the ground up, with what each is for; docs/architecture.md shows this table."""
OUTSIDE = ("tests", "benchmarks", "data_prep", "launch_single_task")
"""What stands on the package, which may not import it."""

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imported_modules(
    path: Path, package: str, inside: tuple[str, ...]
) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import; `inside` holds the dotted name of the folder."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name != package or alias.asname:  # a plain `import gallery_lib`: below
                    yield node.lineno, alias.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == package:
                yield node.lineno, f"{package}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from gallery_lib import config` imports a room; a name out of a room does not
                yield node.lineno, f"{module}.{alias.name}" if module == package else module
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def wrong_imports(folder: Path) -> list[str]:
    """Return a message for each import in the package at `folder` that does not point downwards."""
    package, messages = folder.name, []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts == ("__init__",):
            continue
        room = parts[0]
        if room not in FLOOR_OF:
            messages.append(
                f"{path}: `{room}` has no floor yet: "
                "list it in FLOORS in tests/project/import_direction.py"
            )
            continue
        for line, name in imported_modules(path, package, (package, *parts[:-1])):
            if reason := _reason_against(room, name, package):
                messages.append(f"{path}:{line}: {reason}")
    return list(dict.fromkeys(messages))


def _reason_against(room: str, name: str, package: str) -> str | None:
    """Return why `room` may not import the dotted `name`; None where it may."""
    top, _, rest = name.partition(".")
    target = rest.partition(".")[0]
    if top in OUTSIDE:
        return f"imports `{name}`, which stands on {package} and is not part of it"
    if top != package or target == room or target in ("__file__", "__version__"):
        return None
    if not target:
        return f"imports all of `{package}` under another name: import the module that is meant"
    if target not in FLOOR_OF:
        return f"`{target}` is no module with a floor: import the name from where it is defined"
    here, there = FLOOR_OF[room], FLOOR_OF[target]
    if there > here:
        return f"`{room}` (floor {here}) imports `{target}` (floor {there}), upwards"
    if there == here:
        return f"`{room}` imports its neighbour `{target}`: both are on floor {here}"
    return None
