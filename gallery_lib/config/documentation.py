"""What readers see of the declared options: a notebook's parameters cell, and Markdown tables."""

from __future__ import annotations

import json

from gallery_lib.config.options import Option, options_of, shown


def parameters_source(cls: type) -> str:
    """Return the source of a notebook's parameters cell.

    Each field is one assignment with its meaning as a comment. `int | None` is written `: int =
    None`, since papermill's parameter inspection does not read unions.
    """
    lines = []
    for declared in options_of(cls).values():
        name = "str" if declared.choices else declared.type.__name__
        choices = f" ({', '.join(declared.choices)})" if declared.choices else ""
        default = declared.default
        value = json.dumps(default) if isinstance(default, str) else repr(default)
        lines.append(
            f"{declared.name}: {name} = {value}  # {declared.help}{choices}{declared.bracket}"
        )
    return "\n".join(lines)


def _may_be(declared: Option) -> str:
    """Return the choices or the range of an option, as Markdown; "" for text."""
    if declared.choices:
        return ", ".join(f"`{value}`" for value in declared.choices)
    kind = {bool: "on, off", int: "whole number", float: "number"}.get(declared.type, "")
    if declared.minimum is None or (declared.maximum is None and declared.minimum <= 1):
        return kind
    if declared.maximum is None:
        return f"{kind}, at least {shown(declared.minimum)}"
    return f"{kind}, {shown(declared.minimum)} to {shown(declared.maximum)}"


def options_table(cls: type) -> str:
    """Return the options of `cls` as a Markdown table: name, default, values, unit, meaning."""
    rows = ["| option | default | may be | unit | meaning |", "|---|---|---|---|---|"]
    for declared in options_of(cls).values():
        default = "" if declared.default is None else f"`{declared.default}`"
        rows.append(
            f"| `{declared.name}` | {default} | {_may_be(declared)} | {declared.shown_unit} | "
            f"{declared.help} |"
        )
    return "\n".join(rows)
