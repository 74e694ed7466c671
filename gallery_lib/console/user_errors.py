"""Messages for errors in the reader's own code: one line in the library's words, and their line.

A message has no frame of this package or of a library.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from gallery_lib.errors import InputError

CELL_FILE = "your_cell.py"  # that a notebook's cell is written to; messages say `your cell`

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


def short_name(task: str) -> str:
    """Return the name of a task without its file; of one from a cell, that of its folder."""
    file, _, name = task.rpartition(":")
    path = PurePath(file.replace("\\", "/"))
    return path.parent.name if (path.name, name) == (CELL_FILE, "TASK") else name


def _is_own(path: str) -> bool:
    """Return whether the reader wrote the file, which is then no library's and none of ours."""
    file = Path(path).resolve()
    is_of_library = {"site-packages", "dist-packages"} & set(Path(path).parts)
    if path.startswith("<") or is_of_library or len(file.stem) > _LONG:
        return False
    return not (file.is_relative_to(_PACKAGE) or file.is_relative_to(_STANDARD_LIBRARY))


def line_of(error: BaseException) -> Line | None:
    """Return the reader's innermost line in which `error` came about; None where there is none.

    An error that a data-loading process passed on has its frames only in its text.
    """
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames += re.findall(r'File "([^"]+)", line (\d+)', str(error))
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    own = [Line(path, int(number or 1)) for path, number in frames if _is_own(path)]
    return own[-1] if own else None


def line_of_definition(function: Callable[..., Any]) -> Line | None:
    """Return the line where a function is defined; None where there is no source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Line(code.co_filename, code.co_firstlineno) if code else None


def message(error: BaseException, otherwise: Line | None = None) -> str:
    """Return the error's type, the first line of its message, and the reader's line or `otherwise`.

    The traceback that a data-loading process put around the message is left out.
    """
    kind = type(error).__name__
    text = str(error).rpartition(f"\n{kind}: ")[2].strip()
    sentence = f"{kind}: {text.splitlines()[0]}" if text else kind
    return _with_line(sentence, line_of(error) or otherwise)


def _with_line(what: str, line: Line | None) -> str:
    what = what[:1].upper() + what[1:]
    return f"{what}\n  {line}" if line else what


def at_definition(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for a fault of a function, or of what it returned."""
    text = _with_line(what, line_of_definition(function))
    return InputError(text, parameter=getattr(function, "__name__", None))
