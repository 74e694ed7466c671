"""Sphinx extension that escapes the package's docstrings for reStructuredText.

Napoleon reads their sections (`Args:`, `Raises:` and so on, in google style), and `default_role` in
docs/conf.py makes single backticks code. What is left to this module: a block indented below a
paragraph is code, and what only looks like markup, a bar or a trailing underscore say, is text.
"""

from __future__ import annotations

import re
from typing import Any

_DIRECTIVE = ".. code-block:: text\n\n"
_INDENTED_BLOCK = re.compile(r"^(\S.*\n\n)(?= {4})", re.MULTILINE)
_MARKUP = re.compile(
    rf"""
    (?P<kept>
        {re.escape(_DIRECTIVE)} (?: (?:[ ].*)? \n )+        # a block of code
        | ^[ ]*>>> (?: [ ]*\S.*\n )+                       # an example
        | `[^`]+`                                           # code
        | (?<![\w*]) (\*\*?) [^\s*] (?: [^*]* [^\s*] )? \2 (?![\w*])   # emphasis
    )
    | [\\|*`] | (?<=\w) _ (?!\w) | (?<=:) : (?=\s)
    """,
    re.VERBOSE | re.MULTILINE,
)


def restructured(docstring: str) -> str:
    """Return the docstring with its code blocks marked, and with text escaped that is no markup."""
    marked = _INDENTED_BLOCK.sub(rf"\1{_DIRECTIVE}", f"{docstring}\n")
    return _MARKUP.sub(lambda match: match["kept"] or rf"\{match[0]}", marked)


def setup(app: Any) -> dict[str, Any]:
    """Register the conversion of docstrings; Sphinx calls this function."""

    def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = restructured("\n".join(lines)).splitlines()
        if what in ("attribute", "data", "property"):
            # Napoleon takes what stands before a colon in the first line for a type. An empty
            # comment comes first instead.
            lines[:0] = ["..", ""]

    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
