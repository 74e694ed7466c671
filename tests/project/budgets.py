"""The budget of each room in lines, and the length of a file and a function.

Statements and files are printed beside the lines. `LIMITS` may only shrink: a change that makes a
room larger deletes something in the same room, or says in `LIMITS` what was worth it. `GOALS` is
what a newcomer can hold; a room that is above its goal has work waiting. `gallery_lib`'s is 36,000,
what `trial` may have, 1,500 for speed where users stand, and 800 for GPUs.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 500
FUNCTION_LINES = 80
"""Lines of a function without its decorators, but with its docstring; tests are not held to it."""
SOURCES = ("gallery_lib", "benchmarks", "data_prep", "notebooks", "docs", "launch_single_task.py")
TESTS = "tests"

ROOMS = {
    "commands": ("cli", "console", "config", "system", "errors.py", "stats.py", "__init__.py"),
    "kernels": ("kernels",),
    "optim": ("optim",),
    "comm": ("comm",),
    "compiler": ("compiler",),
    "data": ("data",),
    "tasks": ("tasks",),
    "acceleration": ("acceleration", "memory.py", "tune"),
    "plug": ("plug.py", "adapters"),
    "train": ("train", "checkpoint"),
    "launcher": ("launcher",),
    "measure": ("measure",),
    "trial": ("trial",),
    "cluster": ("cluster",),
    "report": ("report",),
    "notebooks": ("notebooks",),
}
"""Room → its folders and files in `gallery_lib`."""
LIMITS = {
    "commands": 4_080,  # threads that sleep beside other work; the state of GPUs
    "kernels": 2_885,  # launches that are kept packed
    "optim": 1_115,  # launches that are kept packed
    "comm": 2_535,  # cores among processes of one host
    "compiler": 3_035,  # code by shape, tensors that callers of captured graphs keep
    "data": 4_570,  # batches that are late
    "tasks": 2_215,  # batches that fit on a GPU
    "acceleration": 1_185,  # a second model with synchronized batch norm
    "plug": 300,
    "train": 2_710,  # batches that are late
    "launcher": 1_120,
    "measure": 4_675,  # torch.compile's modes on a GPU, its clocks
    "trial": 2_310,  # a page, a change to paste, limits, an earlier trial, modules as culprits
    "cluster": 975,
    "report": 2_065,  # what `gallery try` prints; GPU clocks
    "notebooks": 2_545,
    "gallery_lib": 38_295,
    "tests": 35_720,  # the GPU side: graphs, figures, planted faults
    "benchmarks": 2_960,  # the first minutes on a GPU, part by part
}
GOALS = {
    "commands": 3_200,
    "kernels": 3_000,
    "optim": 1_300,
    "comm": 2_500,
    "compiler": 2_000,
    "data": 4_700,
    "tasks": 2_500,
    "acceleration": 1_200,
    "plug": 300,
    "train": 2_700,
    "launcher": 1_100,
    "measure": 5_000,
    "trial": 2_500,
    "cluster": 1_000,
    "report": 2_300,
    "notebooks": 2_700,
    "gallery_lib": 40_800,
    "tests": 34_000,
    "benchmarks": 2_800,
}


def python_files(checkout: Path, *places: str) -> Iterator[Path]:
    """Yield the Python files of these folders and files of the checkout."""
    for place in places:
        path = checkout / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


@functools.cache
def _measured(path: Path) -> tuple[int, int, dict[str, int]]:
    """Return lines and statements of a file, and the lines of each function."""
    text = path.read_text(encoding="utf-8")
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    functions = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in sorted(statements, key=lambda node: (node.end_lineno or 0) - node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return text.count("\n"), len(statements), functions


def counts(checkout: Path) -> dict[str, tuple[int, int, int]]:
    """Return lines, statements and files of each room, and of the three top folders."""
    places = {
        **{room: [f"gallery_lib/{part}" for part in parts] for room, parts in ROOMS.items()},
        **{folder: [folder] for folder in ("gallery_lib", TESTS, "benchmarks")},
    }
    counted = {}
    for name, parts in places.items():
        files = [_measured(path) for path in python_files(checkout, *parts)]
        counted[name] = (sum(one[0] for one in files), sum(one[1] for one in files), len(files))
    return counted


def table(checkout: Path) -> str:
    """Return the rooms with their lines, limits and goals."""
    rows = [f"{'room':14} {'lines':>7} {'limit':>7} {'goal':>7} {'statements':>11} {'files':>6}"]
    for name, (lines, statements, files) in counts(checkout).items():
        rows.append(
            f"{name:14} {lines:7,} {LIMITS[name]:7,} {GOALS[name]:7,} {statements:11,} {files:6,}"
        )
    return "\n".join(rows)


def faults(checkout: Path) -> list[str]:
    """Return a message for each room over its limit, and for each file or function too long."""
    messages = [
        f"{name}: {lines:,} lines, at most {LIMITS[name]:,}. Delete something there"
        for name, (lines, _, _) in counts(checkout).items()
        if lines > LIMITS[name]
    ]
    for path in python_files(checkout, *SOURCES, TESTS):
        name = path.relative_to(checkout).as_posix()
        lines, _, functions = _measured(path)
        if lines > FILE_LINES:
            messages.append(f"{name}: {lines} lines, at most {FILE_LINES}. Split it by ideas")
        if not name.startswith(f"{TESTS}/"):
            messages += [
                f"{name}:{function}: {length} lines, at most {FUNCTION_LINES}. Split it by ideas"
                for function, length in functions.items()
                if length > FUNCTION_LINES
            ]
    return messages
