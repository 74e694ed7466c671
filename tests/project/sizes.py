"""Limits on the length of files and functions, with the reasons for what is longer.

A file is one idea that its name says, and a function reads from top to bottom. Where a file or a
function is better whole, its entry in `FILES` or `FUNCTIONS` says why. An entry that is no longer
needed is a fault as well, so the tables only shrink.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE_LINES = 300
FUNCTION_LINES = 60
"""Lines of a function without its decorators, but with its docstring; tests are not held to it."""
SOURCES = ("gallery_lib", "benchmarks", "data_prep", "notebooks", "docs", "launch_single_task.py")
TESTS = "tests"

FILES: dict[str, str] = {
    "tests/against_torch/loaders.py": "table of the kinds of loaders, with the class of each",
    "tests/against_torch/loops.py": "table of training loops, written out as people write them",
    "tests/against_torch/models.py": "table of the kinds of models, with the class of each",
    "tests/comm/test_accelerate_ddp.py": "the tests share processes, which take seconds to start",
    "tests/cuda_on_host/mutation.py": "table of mutations, with the loop that tries them",
    "tests/data/loading/test_loaders_on_ranks.py": "the tests share processes, likewise",
    "tests/faults/rows.py": "table of faults, a row each",
}
"""Path of a file that is longer → why it is better whole."""
FUNCTIONS: dict[str, str] = {}
"""`path:name` of a function that is longer, `path:Class.name` of a method → why."""


def python_files(checkout: Path, *places: str) -> Iterator[Path]:
    """Yield the Python files of these folders and files of the checkout."""
    for place in places:
        path = checkout / place
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def function_lengths(path: Path) -> dict[str, int]:
    """Return the number of lines of each function in a file, nested ones and methods included."""
    lengths: dict[str, int] = {}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}" if outer else child.name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (child.end_lineno or child.lineno) - child.lineno + 1
                lengths[name] = max(length, lengths.get(name, 0))  # overloads share a name
            visit(child, name)

    visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), "")
    return lengths


def _faults(
    lengths: Mapping[str, int], limit: int, reasons: Mapping[str, str], table: str
) -> Iterator[str]:
    """Yield a message for each length above the limit, and for each reason without one."""
    for name, length in lengths.items():
        if length > limit and not reasons.get(name, "").strip():
            yield (
                f"{name}: {length} lines, at most {limit}. Split it by ideas, "
                f"or say in {table} of tests/project/sizes.py why it is better whole"
            )
    for name in reasons:
        if lengths.get(name, 0) <= limit:
            yield (
                f"{name}: no longer above {limit} lines. "
                f"Remove its entry from {table} in tests/project/sizes.py"
            )


def faults(checkout: Path) -> list[str]:
    """Return a message for each file or function that is too long, and for each idle entry."""
    files: dict[str, int] = {}
    functions: dict[str, int] = {}
    for path in python_files(checkout, *SOURCES, TESTS):
        name = path.relative_to(checkout).as_posix()
        files[name] = len(path.read_text(encoding="utf-8").splitlines())
        if not name.startswith(f"{TESTS}/"):
            lengths = function_lengths(path)
            functions |= {f"{name}:{function}": length for function, length in lengths.items()}
    return [
        *_faults(files, FILE_LINES, FILES, "FILES"),
        *_faults(functions, FUNCTION_LINES, FUNCTIONS, "FUNCTIONS"),
    ]
