"""Source of a notebook's parameters cell, from the options class that declares its parameters."""

from __future__ import annotations

import json

from gallery_lib.config.options import options_of


def parameters_source(cls: type) -> str:
    """Return an assignment for each option, with its meaning as a comment.

    `int | None` is written `: int = None`, since papermill's parameter inspection reads no unions.
    """
    lines = []
    for name, declared in options_of(cls).items():
        kind = "str" if declared.choices else declared.type.__name__
        choices = f" ({', '.join(declared.choices)})" if declared.choices else ""
        default = declared.default
        value = json.dumps(default) if isinstance(default, str) else repr(default)
        lines.append(f"{name}: {kind} = {value}  # {declared.help}{choices}")
    return "\n".join(lines)
