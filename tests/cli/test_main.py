"""The `gallery` command: its help fits a page, its examples work, and a shell completes it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from refusal import check_refused_command

from gallery_lib.cli.main import _COMMANDS, EXAMPLES, help_page, launch_single_task, main


def test_the_help_page_has_every_command_in_a_group_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert page == help_page() + "\n"
    for name, command in _COMMANDS.items():
        assert re.search(
            rf"^{command.group}\n(  .*\n)*  {name} +{re.escape(command.does)}$", page, re.MULTILINE
        )
    assert max(map(len, page.splitlines())) <= 120


def test_the_version_names_the_gallery_torch_and_python(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
    line = (
        f"gallery_lib {declared}, torch {importlib.metadata.version('torch')}, Python "
        f"{platform.python_version()}\n"
    )
    assert main(["--version"]) == 0
    assert launch_single_task(["--version"]) == 0
    assert capsys.readouterr().out == 2 * line


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_a_command_line_that_parses(example: str) -> None:
    gallery, name, *words = shlex.split(example)
    assert gallery == "gallery"
    _COMMANDS[name].line.parse(words)


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: gallery {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["shwo", "x"], ["`shwo`", "`show`"]),
        (["show"], ["FOLDER", "gallery show --help"]),
        (["list", "x"], ["`x`", "gallery list --help"]),
        (["compare", "before"], ["two batches", "got before."]),
        (["compare", "before", "after", "--seed=1"], ["two batches", "--seed=1"]),
        (["plot", "folder", "picture.pdf"], ["picture.pdf", ".png"]),
        (["lab"], ["ACTION", "gallery lab --help"]),
        (["lab", "dwn"], ["ACTION", "'dwn'"]),
        (["lab", "up", "--hots", "2"], ["`--hots`", "`--hosts`", "gallery lab up --help"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    check_refused_command(code, line, *values)
