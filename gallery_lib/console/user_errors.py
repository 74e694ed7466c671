"""Messages for errors in the reader's own code: one line, and the line of code.

A message has no frame of this package or of a library. `message(error)` translates an exception
that came out of the reader's code. `at_return(function, what)` reports a fault in the value that a
function returned. `error_meanings` knows common mistakes, with what to do about each. For other
errors the library's own sentence is kept.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.error_meanings import MEANINGS
from gallery_lib.errors import InputError

CELL_FILE = "your_cell.py"
"""File that a notebook's cell is written to; messages call it `your cell`."""

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
_LONG = 50  # characters of a name that is a digest: what the compiler writes


@dataclass(frozen=True)
class Line:
    """A line of the reader's code."""

    path: str
    number: int

    def __str__(self) -> str:
        """Return the line as messages show it: file, number and code."""
        name = "your cell" if Path(self.path).name == CELL_FILE else Path(self.path).name
        linecache.checkcache(self.path)
        return f"{name}, line {self.number}: {linecache.getline(self.path, self.number).strip()}"


def is_own(path: str) -> bool:
    """Return whether the reader wrote the file.

    Such a file is in no library, not in the standard library, and not in this package.
    """
    if path.startswith("<"):
        return False
    file = Path(path).resolve()
    if {"site-packages", "dist-packages"} & set(Path(path).parts) or len(file.stem) > _LONG:
        return False
    return not (file.is_relative_to(_PACKAGE) or file.is_relative_to(_STANDARD_LIBRARY))


def line_of(error: BaseException) -> Line | None:
    """Return the reader's innermost line in which `error` came about; None where there is none.

    An error that a data-loading process passed on has its frames only in its text.
    """
    frames = [
        (frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)
    ]
    frames += [
        (path, int(number))
        for path, number in re.findall(r'File "([^"]+)", line (\d+)', str(error))
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno or 1))
    own = [Line(path, number) for path, number in frames if is_own(path)]
    return own[-1] if own else None


def _own_sentence(error: BaseException) -> str:
    """Return the first line of the error's message, with the error's type.

    The traceback that a data-loading process put around the message is left out.
    """
    kind = type(error).__name__
    text = str(error).rpartition(f"\n{kind}: ")[2].strip()
    return f"{kind}: {text.splitlines()[0]}" if text else kind


def explanation(error: BaseException) -> str:
    """Return in one line what is wrong and what to do."""
    text = str(error)
    for pattern, meaning in MEANINGS:
        if match := re.search(pattern, text):
            return match.expand(meaning)
    return _own_sentence(error)


def is_known(error: BaseException) -> bool:
    """Return whether MEANINGS explains this error."""
    return any(re.search(pattern, str(error)) for pattern, _ in MEANINGS)


def _with_line(what: str, line: Line | None) -> str:
    what = what[:1].upper() + what[1:]
    return f"{what}\n  {line}" if line else what


def message(error: BaseException, otherwise: Line | None = None) -> str:
    """Return the message: what is wrong, what to do, and the reader's line.

    Args:
        error: the exception.
        otherwise: the line to show where no frame is the reader's.
    """
    return _with_line(explanation(error), line_of(error) or otherwise)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions and classes that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from _inside(child)


def line_of_definition(function: Callable[..., Any]) -> Line | None:
    """Return the line where a function is defined; None where there is no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Line(code.co_filename, code.co_firstlineno) if code else None


def line_of_return(function: Callable[..., Any]) -> Line | None:
    """Return the line of a function's last `return`, or of its definition without one."""
    definition = line_of_definition(function)
    if definition is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(definition.path)))
    except SyntaxError:
        return definition
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and definition.number in (
            node.lineno,
            *(decorator.lineno for decorator in node.decorator_list),
        ):
            returns = [child.lineno for child in _inside(node) if isinstance(child, ast.Return)]
            return Line(definition.path, max(returns, default=node.lineno))
    return definition


def at_return(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with the value that `function` returned."""
    return InputError(
        _with_line(what, line_of_return(function)), parameter=getattr(function, "__name__", None)
    )


def at_definition(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with how `function` is defined."""
    return InputError(
        _with_line(what, line_of_definition(function)),
        parameter=getattr(function, "__name__", None),
    )
