r"""Shell commands that the documents show, found in their Markdown.

The documents are README, the guides, CONTRIBUTING, the notebooks and a packed README. A command is
a line of a block, fenced or indented, or text in single backquotes, that begins with one of
PROGRAMS. In a block of kind `console` it stands behind `$ `; `\` at its end continues it. `gallery
show` in a sentence is the name of a command, and no command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    *("bash ", "sh ", "python ", "python3 ", "gallery ", "papermill ", "torchrun ", "jupyter "),
    *("uv ", "pip ", ".venv/bin/"),
)
_FENCE = re.compile(r"^(```+|~~~+)\s*\{?([\w-]*)")
_SHELL_FENCES = ("", "console", "bash", "sh", "shell", "text")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_NAME = re.compile(r"gallery [a-z]+( [a-z]+)?")


@dataclass(frozen=True)
class Command:
    """A command as it stands, and the file and line where it is shown."""

    text: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def _continued(lines: list[str], at: int) -> str:
    """Return the command that begins in line `at`, with the lines that it goes on in."""
    text = lines[at].strip()
    while text.endswith("\\") and at + 1 < len(lines):
        at += 1
        text = f"{text}\n{lines[at].strip()}"
    return text


def commands_in(markdown: str, name: str) -> Iterator[Command]:
    """Yield the commands of a Markdown text in their order; `name` is the file's, for messages."""
    lines = markdown.splitlines()
    fence: tuple[str, str] | None = None  # what ends the block, and its kind
    continues = False
    for number, line in enumerate(lines):
        text, where = line.strip(), f"{name}:{number + 1}"
        is_continuation, continues = continues, False
        if match := _FENCE.match(text):
            if fence is None:
                fence = match[1], match[2]
            elif text == fence[0]:
                fence = None
            continue
        if is_continuation:
            continues = text.endswith("\\")
            continue
        if fence and fence[1] == "console":
            is_command, text = text.startswith("$ "), text.removeprefix("$ ")
        else:
            in_block = (
                fence[1] in _SHELL_FENCES if fence else re.match(r" {4,}\S", line) is not None
            )
            is_command = in_block and text.startswith(PROGRAMS)
        if is_command:
            yield Command(_continued(lines, number).removeprefix("$ "), where)
            continues = text.endswith("\\")
        elif fence is None:
            for inline in _INLINE.findall(line):
                if inline.startswith(PROGRAMS) and not _NAME.fullmatch(inline):
                    yield Command(inline, where)


def documented(checkout: Path) -> list[Command]:
    """Return the commands of every document that readers follow; each text once.

    README's commands come first.
    """
    places = ("README.md", "CONTRIBUTING.md", "docs/guides/*.md", "notebooks/template.md")
    places += ("notebooks/whole/*.md", "notebooks/pages/*.md")
    found: dict[str, Command] = {}
    for file in (file for place in places for file in sorted(checkout.glob(place))):
        name = file.relative_to(checkout).as_posix()
        for command in commands_in(file.read_text(encoding="utf-8"), name):
            found.setdefault(command.text, command)
    return list(found.values())
