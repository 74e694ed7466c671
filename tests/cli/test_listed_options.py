"""A command takes every option that its help lists; others it refuses and says why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest
import tiny_task
from refusal import refused

from gallery_lib.cli import main
from gallery_lib.cli.commands import compare
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.config.options import options_of
from gallery_lib.errors import GalleryError
from gallery_lib.measure.comparison import compare as measure

VALUES = {
    "model": f"{tiny_task.__file__}:TASK",
    "rate": "1gbit",
    "confidence": "0.9",
    "amp_dtype": "bf16",
    "deadline": "10m",
    "lr_schedule_steps": "1000",
}
"""Values of the options that do not take any number or word."""
TOGETHER_WITH = {
    "lr_step_size": ["--lr_schedule", "step"],
    "lr_schedule_steps": ["--lr_schedule", "cosine"],
}
"""Words without which an option is refused."""


def example(line: CommandLine, name: str) -> str:
    """Return a value that the option may have."""
    if name in VALUES:
        return VALUES[name]
    for cls in line.classes:
        for f in fields(cls):
            if f.name == name:
                offered = options_of(cls)[name].choices
                is_number = "int" in str(f.type) or "float" in str(f.type)
                return (
                    offered[0]
                    if offered
                    else str(max(f.metadata["minimum"] or 0, 1))
                    if is_number
                    else "word"
                )
    return "word"


def lines(line: CommandLine) -> Iterator[CommandLine]:
    """Yield the command line, or those of its actions."""
    if not line.actions:
        yield line
    for action in line.actions.values():
        yield from lines(action)


def listed(line: CommandLine) -> list[tuple[str, list[str]]]:
    """Return (spelling, words that follow it) of each option in the help as it is printed."""
    text = line.parser().format_help().partition("show this help")[2]
    spelled = set(
        re.findall(
            r"(?<![\w-])--?[a-z][\w-]*", "\n".join(re.findall(r"^ {2}-.*$", text, re.MULTILINE))
        )
    )
    found = []
    for action in line.shown_options():
        takes = 0 if action.nargs == 0 else action.nargs if isinstance(action.nargs, int) else 1
        found += [
            (spelling, [example(line, action.dest)] * takes)
            for spelling in action.option_strings
            if spelling in spelled
        ]
    assert spelled <= {spelling for spelling, _ in found} | {"--help", "-h"}
    return found


LAUNCH = CommandLine("launch_single_task.py", "", (TrainConfig, LaunchConfig))
COMMANDS = [line for command in main._COMMANDS.values() for line in lines(command.line)]


def operands_of(line: CommandLine) -> list[str]:
    """Return the operands that have to stand on the command line."""
    needed = [
        action
        for action in line.parser()._actions
        if not action.option_strings and action.nargs in (None, "+")
    ]
    return [
        str(action.choices[0]) if isinstance(action.choices, Sequence) else "word"
        for action in needed
    ]


@pytest.mark.parametrize("line", [*COMMANDS, LAUNCH], ids=lambda line: line.prog)
def test_each_option_in_the_help_is_taken(line: CommandLine) -> None:
    for spelling, values in listed(line):
        line.parse([spelling, *values, *operands_of(line)])


class Reached(GalleryError):
    """Raised when everything was checked and the comparison would begin."""


def reached(*arguments: Any) -> None:
    raise Reached


@pytest.mark.parametrize(("spelling", "values"), listed(compare.LINE), ids=lambda value: str(value))
def test_gallery_compare_begins_with_each_option_in_its_help(
    spelling: str, values: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.UntimedRuns, "reference", reached)
    monkeypatch.setattr(measure.pretrained, "check_file", lambda config: None)
    others = TOGETHER_WITH.get(spelling.strip("-").replace("-", "_"), [])
    with pytest.raises(Reached):
        compare.main(["--model", VALUES["model"], spelling, *values, *others])


@pytest.mark.parametrize("name", compare.LINE.fixed)
def test_gallery_compare_lists_no_option_that_it_decides_itself_and_says_why(name: str) -> None:
    assert f"--{name}" not in compare.LINE.parser().format_help()
    with refused(name, f"`--{name}`", compare.LINE.fixed[name]):
        compare.LINE.parse([f"--{name}", "1"])
