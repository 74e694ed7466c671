"""Messages for errors in the reader's own code: one line, and the line of code.

A message has no frame of this package or of a library. `told(error)` translates an exception that
came out of the reader's code. `at_return(function, what)` reports a fault in the value that a
function returned. TABLE holds known mistakes, with what to do about each. For other errors the
library's own sentence is kept.
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

from gallery_lib.errors import InputError

CELL_FILE = "your_cell.py"
"""File that a notebook's cell is written to; messages call it `your cell`."""

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
_LONG = 50  # characters of a name that is a digest: what the compiler writes
_FLOAT_LIKE, _INTEGER_LIKE = (
    "(?:Float|float|Half|BFloat16|Double|double)",
    "(?:Long|Int|Byte|Char|Short|Bool|long int|unsigned char|int)",
)
_CONVERT = "Convert in make_batch: inputs with `.float()`, class numbers and tokens with `.long()`."

NO_GRADIENT = (
    "the loss does not depend on the model's parameters. Leave out `.detach()`, `.item()`, "
    "`no_grad` and `argmax` on the way to it."
)

TABLE: list[tuple[str, str]] = [
    # Names and calls
    (
        r"name 'get_ipython' is not defined",
        "a line for IPython (`%` or `!`) stands between the functions, which are run as a Python "
        "file. Move it to a cell of its own.",
    ),
    (
        r"name '(\w+)' is not defined",
        r"`\1` is not known here: the training processes run this code as a file of its own. "
        r"Import or define `\1` in it.",
    ),
    (
        r"No module named '([\w.]+)'",
        r"the module `\1` is not found. "
        r"Install it in this environment, or put it beside the notebook.",
    ),
    (
        r"(\w[\w.]*)\(\) missing (\d+) required (?:positional|keyword-only) arguments?: (.+)",
        r"the call of `\1` lacks \3. Give it.",
    ),
    (
        r"(\w[\w.]*)\(\) takes (.+) but (\d+) (?:was|were) given",
        r"`\1` takes \2, and is called with \3 (`self` counts as one).",
    ),
    (
        r"(\w[\w.]*)\(\) got an unexpected keyword argument '(\w+)'",
        r"`\1` has no argument `\2`. Leave it out, or correct its name.",
    ),
    # What is handed on
    (
        r"'(?:list|tuple)' object has no attribute '(\w+)'",
        r"a tuple or list is used like a tensor (`.\1`). "
        r"Take the element that you mean: `[0]`, say.",
    ),
    (
        r"'NoneType' object has no attribute '(\w+)'",
        r"a function returned nothing (None), and `.\1` is asked of that. Is a `return` missing?",
    ),
    (
        r"'(?:float|int)' object has no attribute '(?:backward|detach)'",
        "the loss is a plain number. Return the tensor, without `.item()`.",
    ),
    (
        r"'(\w+)' object has no attribute "
        r"'(flatten|shape|size|view|reshape|float|argmax|mean|sum|squeeze|dim|backward|detach)'",
        r"an object, \1, is used like a tensor (`.\2`). "
        r"Take its tensor: `.logits` or `.loss`, say.",
    ),
    (
        r"must be Tensor, not (?:tuple|list)",
        "a tuple or list stands where a tensor belongs. "
        "Take the element that you mean: `[0]`, say.",
    ),
    (
        r"must be Tensor, not NoneType",
        "nothing (None) stands where a tensor belongs. Is a `return` missing?",
    ),
    (
        r"must be Tensor, not (?:numpy\.)?ndarray",
        "a NumPy array stands where a tensor belongs: `torch.from_numpy(array)` makes it one.",
    ),
    (
        r"must be Tensor, not (?:float|int)",
        "a plain number stands where a tensor belongs. "
        "Leave `.item()` out, or use `torch.tensor(…)`.",
    ),
    (
        r"must be Tensor, not (\w+)",
        r"an object, \1, stands where a tensor belongs. "
        r"Take its tensor: `.logits` or `.loss`, say.",
    ),
    # Devices
    (
        r"not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|No HIP GPUs",
        'there is no GPU here. Leave `.cuda()` and `device="cuda"` out: model and batches are '
        "moved to where the training runs.",
    ),
    (
        r"Expected all tensors to be on the same device|should be the same device"
        r"|is on (?:cpu|cuda)[^.]* but expected",
        "tensors lie on different devices. "
        "Make new ones with `device=x.device`, and fixed ones with `register_buffer`.",
    ),
    (
        r"device-side assert",
        "an index is out of its range (a class number or a token, say). "
        "The kernel has to be restarted after this.",
    ),
    (
        r"out of memory|can't allocate memory|not enough memory",
        "the step does not fit into memory. Use a smaller batch, or a smaller model.",
    ),
    # Shapes
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)",
        r"a linear layer takes \2 values and is given \1. "
        r"Change its size, or the shape of what it is given.",
    ),
    (
        r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+)",
        r"a convolution takes \2 channels and is given \3: its input has the shape [\1], with "
        r"channels in the second place.",
    ),
    (
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        r"the loss is given predictions for \1 samples and targets for \2. "
        r"Flatten both in the same way.",
    ),
    (
        r"[Tt]he size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        r"two tensors do not fit together: \1 values in a dimension where the other has \2.",
    ),
    (
        r"shape '\[([^]]*)\]' is invalid for input of size (\d+)",
        r"a tensor of \2 values cannot be given the shape [\1].",
    ),
    (
        r"[Tt]arget (-?\d+) is out of bounds",
        r"a target is class \1, and the model has no output of that number. Classes count from 0; "
        r"give the model as many outputs.",
    ),
    (
        r"index out of range in self",
        "an embedding has no row for one of the indices. "
        "Give it as many rows as there are tokens; they count from 0.",
    ),
    # Dtypes
    (
        rf"must have the same dtype, but got {_INTEGER_LIKE} and {_FLOAT_LIKE}"
        rf"|expected scalar type {_FLOAT_LIKE} but found {_INTEGER_LIKE}"
        rf"|(?:Input type|input type) \((?:torch\.)?(?:cuda\.)?{_INTEGER_LIKE}",
        f"whole numbers are given where a layer computes with floating point. {_CONVERT}",
    ),
    (
        rf"expected scalar type {_INTEGER_LIKE} but found {_FLOAT_LIKE}"
        "|scalar types: Long, Int; but got"
        "|[Ee]xpected target dtype to be Long",
        f"floating point is given where whole numbers belong (class numbers, tokens). {_CONVERT}",
    ),
    (
        r"not implemented for '(?:Long|Int|Byte|Char|Short|Bool)'|could not infer output dtype"
        r"|can't be cast to the desired output type (?:Long|Int)",
        f"whole numbers are given where floating point is needed. {_CONVERT}",
    ),
    (
        r"must have the same dtype, but got (\S+) and (\S+)|[Ff]ound dtype (\S+) but expected (\S+)"
        r"|expected scalar type (\S+) but found (\S+)"
        r"|(?:Input|input) type \((\S+)\) and (?:weight|bias) type",
        "numbers of two precisions meet. "
        "Make new tensors with `dtype=x.dtype`, and convert none to a fixed precision.",
    ),
    # The backward pass
    (r"does not require grad and does not have a grad_fn", NO_GRADIENT),
    (
        r"grad can be implicitly created only for scalar outputs",
        "the loss is several numbers; it must be one. Return its `.mean()`.",
    ),
    (
        r"modified by an inplace operation",
        "a tensor that the backward pass needs was changed in place (`x += …`, `x[…] = …`, "
        "`relu_()`). Write `x = x + …`.",
    ),
    (
        r"backward through the graph a second time",
        "a tensor of an earlier step is used again in this one. "
        "Detach what the model keeps from step to step.",
    ),
    (
        r"optimizer got an empty parameter list",
        "the model has no parameters to train. Make its layers attributes of an `nn.Module`.",
    ),
]
"""Pattern in an error's message → what is wrong, and what to do. The first match counts."""


@dataclass(frozen=True)
class Line:
    """A line of the reader's code."""

    path: str
    number: int

    def __str__(self) -> str:
        """Return the line as messages show it: file, number and code."""
        called = "your cell" if Path(self.path).name == CELL_FILE else Path(self.path).name
        linecache.checkcache(self.path)
        return f"{called}, line {self.number}: {linecache.getline(self.path, self.number).strip()}"


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


def words(error: BaseException) -> str:
    """Return in one line what is wrong and what to do."""
    text = str(error)
    for pattern, meaning in TABLE:
        if match := re.search(pattern, text):
            return match.expand(meaning)
    return _own_sentence(error)


def is_known(error: BaseException) -> bool:
    """Return whether TABLE has words for this error."""
    return any(re.search(pattern, str(error)) for pattern, _ in TABLE)


def _message(what: str, line: Line | None) -> str:
    what = what[:1].upper() + what[1:]
    return f"{what}\n  {line}" if line else what


def told(error: BaseException, otherwise: Line | None = None) -> str:
    """Return the message: what is wrong, what to do, and the reader's line.

    Args:
        error: the exception.
        otherwise: the line to show where no frame is the reader's.
    """
    return _message(words(error), line_of(error) or otherwise)


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
            *(each.lineno for each in node.decorator_list),
        ):
            returns = [child.lineno for child in _inside(node) if isinstance(child, ast.Return)]
            return Line(definition.path, max(returns, default=node.lineno))
    return definition


def at_return(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with the value that `function` returned."""
    return InputError(_message(what, line_of_return(function)))


def at_definition(function: Callable[..., Any], what: str) -> InputError:
    """Return the error for something wrong with how `function` is defined."""
    return InputError(_message(what, line_of_definition(function)))
