"""Parameters and cells of the notebook that this kernel runs."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

from gallery_lib.config import options

Config = TypeVar("Config")


def _namespace() -> dict[str, Any]:
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call]
    return shell.user_ns if shell else {}


def cell_that_assigns(name: str) -> str | None:
    """Return the source of the newest cell of this kernel that begins a line with `name =`."""
    assignment = re.compile(rf"^{name}\b[\w\s,:]*=(?!=)", re.MULTILINE)
    return next(filter(assignment.search, reversed(_namespace().get("In", []))), None)


def checked(cls: type[Config], parameters: dict[str, Any] | None) -> Config:
    """Return `parameters` as options of the class; None: what this kernel's names are set to.

    Raises:
        InputError: for an unknown parameter, a wrong type or an impossible value.
    """
    if parameters is None:
        names = _namespace()
        fields = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        parameters = {name: names[name] for name in fields if name in names}
    return options.from_mapping(cls, parameters)
