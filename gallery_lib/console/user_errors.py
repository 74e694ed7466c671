"""Messages for errors in the reader's own code: one line, and the line of code.

A message has no frame of this package or of a library. `message(error)` has the library's own
sentence about an exception that came out of the reader's code, and a hint where HINTS knows one.
`at_return(function, what)` reports a fault in the value that a function returned.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from gallery_lib.errors import InputError

CELL_FILE = "your_cell.py"
"""File that a notebook's cell is written to; messages call it `your cell`."""

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
_LONG = 50  # characters of a name that is a digest: what the compiler writes

NO_GRADIENT = (
    "the loss does not depend on the model's parameters. Leave out `.detach()`, `.item()`, "
    "`no_grad` and `argmax` on the way to it."
)
HINTS = {
    r"name '\w+' is not defined": "The training processes run this code as a file of its own: "
    "import or define the name in it, and move lines for IPython (`%` or `!`) to another cell.",
    r"No module named": "Install it in this environment, or put it beside the notebook.",
    r"'NoneType' object has no attribute|must be Tensor, not NoneType": "Is a `return` missing?",
    r"'(?:float|int)' object has no attribute|must be Tensor, not (?:float|int)": "Leave `.item()` "
    "out, or use `torch.tensor(…)`.",
    r"must be Tensor, not (?:numpy\.)?ndarray": "`torch.from_numpy(array)` makes it a tensor.",
    r"'(?:list|tuple)' object has no attribute|must be Tensor, not (?:tuple|list)": "Take the "
    "element that you mean: `[0]`, say.",
    r"must be Tensor, not \w+|object has no attribute '(?:flatten|shape|size|view|reshape|float|"
    r"argmax|mean|sum|squeeze|dim|backward|detach)'": "Take its tensor: `.logits` or `.loss`, say.",
    r"not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs|No HIP GPUs": "Leave "
    '`.cuda()` and `device="cuda"` out: model and batches are moved to where the training runs.',
    r"to be on the same device|should be the same device|is on (?:cpu|cuda)[^.]* but expected": (
        "Make new tensors with `device=x.device`, and fixed ones with `register_buffer`."
    ),
    r"device-side assert": "An index is out of its range. The kernel has to be restarted.",
    r"out of memory|can't allocate memory|not enough memory": "Use a smaller batch or model.",
    r"[Tt]arget -?\d+ is out of bounds": "Classes count from 0; the model needs as many outputs.",
    r"index out of range in self": "An embedding needs as many rows as there are tokens.",
    r"expected scalar type|must have the same dtype|[Ff]ound dtype|nput type|not implemented for '"
    r"(?:Long|Int|Byte|Char|Short|Bool)'|scalar types: Long, Int|target dtype to be Long|infer "
    r"output dtype|desired output type": "In make_batch, convert inputs with `.float()`, class "
    "numbers and tokens with `.long()`. In the model, make new tensors with `dtype=x.dtype`.",
    r"does not require grad and does not have a grad_fn": NO_GRADIENT,
    r"grad can be implicitly created only for scalar": "The loss is one number: its `.mean()`.",
    r"modified by an inplace operation": "Write `x = x + …` in the place of `x += …`.",
    r"backward through the graph a second time": "Detach what the model keeps from step to step.",
    r"empty parameter list": "Make the model's layers attributes of an `nn.Module`.",
}
"""Pattern in a library's message → what to do. The first match counts."""


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
    """Return the name of a task as progress and verdict show it: without its file.

    A model from a cell of `your_model` has the name of its class, which is that of its folder.
    """
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


def hint(error: BaseException) -> str:
    """Return what to do about the error; "" where HINTS does not know."""
    text = str(error)
    return next((hint for pattern, hint in HINTS.items() if re.search(pattern, text)), "")


def explanation(error: BaseException) -> str:
    """Return in one line what is wrong and, where it is known, what to do.

    It is the first line of the error's message, with the error's type, without the traceback that
    a data-loading process put around it.
    """
    kind, known = type(error).__name__, hint(error)
    text = str(error).rpartition(f"\n{kind}: ")[2].strip()
    sentence = f"{kind}: {text.splitlines()[0]}" if text else kind
    return f"{sentence.rstrip('.')}. {known[:1].upper()}{known[1:]}" if known else sentence


def _with_line(what: str, line: Line | None) -> str:
    what = what[:1].upper() + what[1:]
    return f"{what}\n  {line}" if line else what


def message(error: BaseException, otherwise: Line | None = None) -> str:
    """Return the message: what is wrong, what to do, and the reader's line, else `otherwise`."""
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
    with contextlib.suppress(SyntaxError):
        for node in ast.walk(ast.parse("".join(linecache.getlines(definition.path)))):
            if isinstance(node, ast.FunctionDef) and definition.number in (
                node.lineno,
                *(decorator.lineno for decorator in node.decorator_list),
            ):
                returns = [child.lineno for child in _inside(node) if isinstance(child, ast.Return)]
                return Line(definition.path, max(returns, default=node.lineno))
    return definition


def _input_error(function: Callable[..., Any], what: str, line: Line | None) -> InputError:
    return InputError(_with_line(what, line), parameter=getattr(function, "__name__", None))


def at_return(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with the value that `function` returned."""
    return _input_error(function, what, line_of_return(function))


def at_definition(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with how `function` is defined."""
    return _input_error(function, what, line_of_definition(function))
