"""Command lines: help that fits a page, options that are taken as listed, and what is refused."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_task
from refusal import check_refused_command, refused

from gallery_lib.cli.main import COMMANDS, LAUNCH, help_page, launch_single_task, main
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.options import CommandLine, options_of
from gallery_lib.errors import GalleryError
from gallery_lib.measure.comparison import compare as measure

VALUES = {
    **{"model": f"{tiny_task.__file__}:TASK", "rate": "1gbit", "amp_dtype": "bf16"},
    **{"lr_schedule_steps": "1000", "without": "vector_masks"},
}
"""Values of the options that do not take any number or word."""
COMPARE = COMMANDS["compare"].line


def words_for(line: CommandLine) -> Iterator[list[str]]:
    """Yield the words of each option in the help, with a value that it may have."""
    declared = {name: one for cls in line.classes for name, one in options_of(cls).items()}
    for action in line.parser()._actions:
        if not action.option_strings or action.dest == "help":
            continue
        one = declared.get(action.dest)
        value = VALUES.get(action.dest, "word")
        if one and action.dest not in VALUES:
            is_number = one.type in (int, float)
            value = str(max(one.minimum, 1)) if is_number else (*one.choices, "word")[0]
        takes = action.nargs if isinstance(action.nargs, int) else 1
        for spelling in action.option_strings:
            yield [spelling, *[value] * takes]


def needed(line: CommandLine) -> list[str]:
    """Return operands for those that have to stand on the command line."""
    actions = line.parser()._actions
    return ["word" for one in actions if not one.option_strings and one.nargs in (None, "+")]


LINES = [LAUNCH, *(command.line for command in COMMANDS.values())]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.prog)
def test_each_option_in_the_help_is_taken(line: CommandLine) -> None:
    for words in words_for(line):
        line.parse([*words, *needed(line)])


class Reached(GalleryError):
    """Raised when everything was checked and the comparison would begin."""


def reached(*arguments: Any) -> None:
    raise Reached


def test_gallery_compare_begins_with_each_option_in_its_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure.UntimedRuns, "reference", reached)
    monkeypatch.setattr(measure.pretrained, "read_weights", lambda path: {})
    for words in words_for(COMPARE):
        schedule = ["--lr_schedule=cosine"] if "schedule-steps" in words[0] else []
        words = ["--model", VALUES["model"], *words, *schedule]
        with pytest.raises(Reached):
            COMMANDS["compare"].run(words, *COMPARE.parse(words))


@pytest.mark.parametrize("name", COMPARE.without)
def test_gallery_compare_has_no_option_that_it_decides_itself(name: str) -> None:
    assert name in options_of(TrainConfig) or name in options_of(LaunchConfig)
    with refused(None, f"`--{name.replace('_', '-')}`"):
        COMPARE.parse([f"--{name}=1"])


def test_the_help_page_has_every_command_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (["--help"], [], ["lab", "--help"]):
        assert main(words) == 0
        assert capsys.readouterr().out == help_page() + "\n"
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.line.description)}$", help_page(), re.M)
    assert max(map(len, help_page().splitlines())) <= 120


def test_the_version_names_the_gallery_torch_and_python(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
    versions = f"torch {importlib.metadata.version('torch')}, Python {platform.python_version()}"
    assert (main(["--version"]), launch_single_task(["--version"])) == (0, 0)
    assert capsys.readouterr().out == 2 * f"gallery_lib {declared}, {versions}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*name.split(), "--help"])
    assert f"usage: gallery {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("shwo x", ["`shwo`", "`show`"]),
        ("show", ["FOLDER", "gallery show --help"]),
        ("list x", ["`x`", "gallery list --help"]),
        ("compare before", ["two batches", "got before."]),
        ("compare before after --seed=1", ["two batches", "--seed=1"]),
        ("lab dwn", ["`lab dwn`", "`lab down`"]),
        ("lab up --hots 2", ["`--hots`", "`--hosts`", "gallery lab up --help"]),
        ("run --resume", ["--resume", "--out"]),
        ("doctor --workers 2", ["--workers"]),
        ("roofline", ["TASK", "gallery roofline --help"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    check_refused_command(code, line, *values)
