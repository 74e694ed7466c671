"""The cells of a task's notebook that hold the task's own code: its model, loss and optimizer.

They are written from the task's source, so the notebook shows what is trained. A cell has the
imports that its function needs. Annotations are left out, for a reader who looks for the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from gallery_lib.notebooks.cells.your_code import without_annotations
from gallery_lib.optim import OptimizerSpec

_TYPE_REMARK = re.compile(r"  # type: ignore\S*(, \S+)*$", re.MULTILINE)


def _imports(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the names that a module's own import statements bind, each with its statement."""
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                renamed = f" as {alias.asname}" if alias.asname else ""
                yield alias.asname or alias.name.partition(".")[0], f"import {alias.name}{renamed}"
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                renamed = f" as {alias.asname}" if alias.asname else ""
                yield (
                    alias.asname or alias.name,
                    f"from {statement.module} import {alias.name}{renamed}",
                )


def _used_names(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def _import_lines(function: Callable[..., Any]) -> list[str]:
    """Return the import statements for the names of its module that a function uses, sorted."""
    module = sys.modules[function.__module__]
    known = dict(_imports(module))
    lines = set()
    for name in _used_names(without_annotations(inspect.getsource(function))):
        if name in known:
            lines.add(known[name])
        elif hasattr(module, name):
            lines.add(f"from {module.__name__} import {name}")
    return _merged(lines)


def _merged(lines: set[str]) -> list[str]:
    """Return import statements in ruff's order, those from one module in one line."""
    plain = sorted(line for line in lines if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in sorted(lines - set(plain)):
        module, _, name = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, []).append(name)
    for own_names in names.values():
        own_names.sort(key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    foreign = [f"from {m} import {', '.join(n)}" for m, n in names.items() if _is_foreign(m)]
    own = [f"from {m} import {', '.join(n)}" for m, n in names.items() if not _is_foreign(m)]
    return [*plain, *foreign, *([""] if own and (plain or foreign) else []), *own]


def _is_foreign(module: str) -> bool:
    return not module.startswith("gallery_lib")


def without_annotations_in_text(source: str) -> str:
    """Return the source of a function as it stands, with a signature of names and defaults alone.

    Annotations of variables and remarks to type checkers are left out as well.
    """
    function = without_annotations(source)
    signature = f"def {function.name}({ast.unparse(function.args)}):"
    end = re.search(r"^def .*?:\n(?=    )", source, re.DOTALL | re.MULTILINE)
    assert end is not None
    body = source[end.end() :].rstrip()
    body = re.sub(r"^( +\w+): [\w\[\]., ]+ = ", r"\1 = ", body, flags=re.MULTILINE)
    return f"{signature}\n{_TYPE_REMARK.sub('', body)}"


def function_cell(function: Callable[..., Any]) -> str:
    """Return a cell that defines `function`, with the imports that it needs."""
    source = without_annotations_in_text(textwrap.dedent(inspect.getsource(function)))
    imports = _import_lines(function)
    return "\n".join([*imports, *(["", ""] if imports else []), source])


def optimizer_cell(spec: OptimizerSpec) -> str:
    """Return a cell that defines `build_optimizer` for the optimizer of a task."""
    values = {"lr": spec.lr, "weight_decay": spec.weight_decay, **spec.arguments}
    arguments = ", ".join(f"{name}={_literal(v)}" for name, v in values.items() if v)
    return "\n".join(
        [
            "import torch",
            "",
            "",
            "def build_optimizer(parameters):",
            f'    """Return {spec.name} for these parameters."""',
            f"    return torch.optim.{spec.name}(parameters, {arguments})",
        ]
    )


def _literal(value: Any) -> str:
    """Return a number as one writes it: `1e-3`, not `0.001`."""
    if isinstance(value, float) and value and not 0.1 <= abs(value) < 1000:
        digits, _, exponent = f"{value:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return repr(value)


def diff_of_script(optimizer: str) -> str:
    """Return what changes in a training script with this optimizer, as fenced Markdown.

    Args:
        optimizer: the cell that defines `build_optimizer`.
    """
    call = optimizer.rpartition("return ")[2].strip().replace("(parameters", "(model.parameters()")
    lines = [
        "+from gallery_lib import Config, accelerate",
        "+",
        "-model = build_model().to(device)",
        "+model = build_model()",
        f" optimizer = {call}",
        "+config = Config()",
        "+config.compute.bf16 = True  # as autocast below",
        "+model, loader, optimizer = accelerate(model, loader, optimizer, config)",
        " for batch in loader:",
        "-    batch = to_device(batch, device)",
        "     optimizer.zero_grad()",
        "     with torch.autocast(device.type, torch.bfloat16):",
        "         value = loss(model, batch)",
        "     value.backward()",
        "     optimizer.step()",
    ]
    return "\n".join(["```diff", *lines, "```"])
