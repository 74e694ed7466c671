"""Sphinx extension that converts the package's docstrings, plain prose, to reStructuredText.

The prose may contain `code` in single backticks, *emphasis*, code in indented blocks, lists with
dashes or numbers, and an `Args:` section. Everything else is text. Characters that reStructuredText
would take for markup (a trailing underscore, a bar) are escaped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

_CODE = re.compile(r"`+([^`]+)`+")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})([^\s*](?:[^*]*[^\s*])?)\1(?![\w*])")
_ITEM = re.compile(r"- |\d+\. ")


def _prose(text: str) -> str:
    """Return running text, of one or more lines, with code marked and everything else escaped."""
    parts: list[str] = []
    end = 0
    for match in _CODE.finditer(text):
        before, after = text[end : match.start()], text[match.end() : match.end() + 1]
        # A literal must stand apart from adjacent letters; an escaped space is not shown.
        joint = "\\ " if (before or "".join(parts[-1:]))[-1:].isalnum() else ""
        parts += [
            _escaped(before),
            joint,
            f"``{' '.join(match[1].split())}``",
            "\\ " if after.isalnum() else "",
        ]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    parts: list[str] = []
    end = 0
    for match in _EMPHASIS.finditer(text):
        parts += [_literal(text[end : match.start()]), match[1], _literal(match[2]), match[1]]
        end = match.end()
    return "".join([*parts, _literal(text[end:])])


def _literal(text: str) -> str:
    escaped = re.sub(r"[\\*|_`]", r"\\\g<0>", text)
    return re.sub(r"::(?=\s|$)", r":\\:", escaped)


def _arguments(lines: Sequence[str]) -> Iterator[str]:
    """Yield the indented lines below `Args:` as fields.

    A line with a deeper indentation continues the line before.
    """
    indent = len(lines[0]) - len(lines[0].lstrip())
    joined: list[str] = []
    for line in lines:
        if joined and len(line) - len(line.lstrip()) > indent:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line.strip())
    for line in joined:
        name, _, meaning = line.partition(": ")
        yield f":param {_literal(name)}: {_prose(meaning)}"


def _paragraph(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a paragraph, or of a list with the text in front of it."""
    items: list[list[str]] = []
    for line in lines:
        in_list = bool(items) and _ITEM.match(items[-1][0]) is not None
        if _ITEM.match(line) or not items or (in_list and not line.startswith(" ")):
            items.append([line.strip()])
        else:
            items[-1].append(line.strip())
    for item in items:
        found = _ITEM.match(item[0])
        marker = found[0] if found else ""
        text = _prose("\n".join([item[0].removeprefix(marker), *item[1:]])).splitlines()
        yield from [
            "",
            *(
                (marker if number == 0 else " " * len(marker)) + line
                for number, line in enumerate(text)
            ),
        ]


def _kind(line: str) -> str:
    if not line.strip():
        return "blank"
    return "code" if line.startswith("    ") else "text"


def restructured(lines: Sequence[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText."""
    result: list[str] = []
    arguments = False
    for kind, group in itertools.groupby(lines, _kind):
        part = list(group)
        if kind == "code" and arguments:
            result += ["", *_arguments(part)]
        elif kind == "code":
            result += ["", ".. code-block:: text", "", *part]
        elif kind == "text":
            arguments = part[-1].strip() == "Args:"
            result += _paragraph(part[:-1] if arguments else part)
        if kind != "blank":
            result.append("")
    return result


def setup(app: Any) -> dict[str, Any]:
    """Register the conversion of docstrings; Sphinx calls this function."""

    def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = restructured(lines)

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
