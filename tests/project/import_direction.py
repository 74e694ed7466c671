"""Checks that imports inside `gallery_lib` only ever point downwards, floor by floor.

    python tests/project/import_direction.py gallery_lib

Reads the source with `ast`, so that imports inside functions count as well, and so do
`importlib.import_module("gallery_lib.…")` calls. Rooms side by side may use one another where NEIGHBOURS_ALLOWED says so, but not
in a circle. The package's own `__init__.py`, which exports lazily from every
floor, is the one exception. Prints each wrong import with its line, and ends with exit code 1 if there are any.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FLOORS: dict[float, tuple[str, ...]] = {
    0: (
        "errors",
        "options",
        "config",
        "toggle",
        "paths",
        "cgroups",
        "hardware",
        "stats",
        "log",
        "clock",
        "durations",
        "mistakes",
        "own_cell",
        "working_copies",
        "results",
        "json_files",
        "outlets",
        "progress",
        "phases",
        "expected_durations",
        "run_view",
        "processes",
        "rendezvous",
        "run_folder",
        "failure",
        "command",
        "table",
        "prepared_python",
        "extras",
        "version",
    ),
    1: ("compiler", "precision", "dropout", "optim", "kernels", "comm", "data", "models"),
    1.3: ("tune",),  # chooses among what the parts on floor 1 offer
    1.4: ("parts",),  # what accelerate() is given
    1.5: ("acceleration",),  # made of the parts on floor 1, which do not know it
    1.7: ("recipe",),  # calls it, or lets measure/ call another library
    2: ("tasks", "divergence"),
    2.5: ("train",),  # trains any of the tasks
    3.5: ("launcher",),
    3.2: ("spawn", "torchrun"),
    3: ("supervisor", "worker", "script", "cluster"),
    4: ("measure",),
    5: ("completion", "report", "pack", "next_steps"),
    5.5: ("batch",),  # its summary uses the tables
    5.7: ("site",),  # shows what a batch left
    5.9: ("commands",),  # what the words behind `gallery` do
    6: ("cli", "jupyterlab", "notebook"),
    6.5: ("walk", "wire", "performance_data", "__main__"),
}
NEIGHBOURS_ALLOWED = (0, 1)  # floors on which one room may import another
OUTSIDE = ("tests", "benchmarks", "data_prep", "launch_single_task")  # stand on the package, so it may not import them

FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}


def imported_modules(path: Path, package: str, inside: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that the file imports; `inside` is the dotted name of its folder, in parts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name != package or alias.asname:  # what is reached through a plain `import gallery_lib` comes below
                    yield node.lineno, alias.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package:
            yield node.lineno, f"{package}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from gallery_lib import config` imports a room; `from gallery_lib.config import Config` does not add one
                yield node.lineno, f"{module}.{alias.name}" if module == package else module
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def wrong_imports(folder: Path) -> list[str]:
    """A message for every import in the package at `folder` that does not point downwards."""
    package, messages = folder.name, []
    used_by: dict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts == ("__init__",):
            continue
        room = parts[0]
        if room not in FLOOR_OF:
            messages.append(f"{path}: `{room}` has no floor yet: list it in FLOORS in tests/project/import_direction.py")
            continue
        for line, name in imported_modules(path, package, (package, *parts[:-1])):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top in OUTSIDE:
                messages.append(f"{path}:{line}: imports `{name}`, which stands on {package} and is not part of it")
                continue
            if top != package or target == room or target in ("__file__", "__version__"):
                continue
            if not target:
                messages.append(f"{path}:{line}: imports all of `{package}` under another name: import the module that is meant")
                continue
            used_by[room].add(target)
            if target not in FLOOR_OF:
                messages.append(f"{path}:{line}: `{target}` is no module with a floor: import the name from where it is defined")
            elif FLOOR_OF[target] > FLOOR_OF[room]:
                messages.append(f"{path}:{line}: `{room}` (floor {FLOOR_OF[room]}) imports `{target}` (floor {FLOOR_OF[target]}), upwards")
            elif FLOOR_OF[target] == FLOOR_OF[room] and FLOOR_OF[room] not in NEIGHBOURS_ALLOWED:
                messages.append(f"{path}:{line}: `{room}` imports its neighbour `{target}`: both are on floor {FLOOR_OF[room]}")
    try:
        graphlib.TopologicalSorter(used_by).prepare()
    except graphlib.CycleError as error:
        messages.append(f"{folder}: rooms import one another in a circle: {' ← '.join(error.args[1])}")
    return list(dict.fromkeys(messages))


if __name__ == "__main__":
    found = wrong_imports(Path(sys.argv[1]).resolve())
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))
