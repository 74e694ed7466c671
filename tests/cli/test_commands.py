"""Command lines: help that fits a page, options that are taken as listed, and what is refused."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_task
from refusal import check_refused_command, refused

from gallery_lib.cli.commands import COMMANDS
from gallery_lib.cli.main import EXAMPLES, help_page, launch_single_task, main
from gallery_lib.cli.next_steps import commands
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.config.options import options_of
from gallery_lib.errors import GalleryError
from gallery_lib.measure.comparison import compare as measure

VALUES = {
    **{"model": f"{tiny_task.__file__}:TASK", "rate": "1gbit", "confidence": "0.9"},
    **{"amp_dtype": "bf16", "deadline": "10m", "lr_schedule_steps": "1000"},
}
"""Values of the options that do not take any number or word."""
TOGETHER_WITH = {"lr_schedule_steps": "--lr_schedule=cosine"}
"""Words without which an option is refused."""
COMPARE = COMMANDS["compare"].line


def example(line: CommandLine, name: str) -> str:
    """Return a value that the option may have."""
    declared = next(
        (options_of(cls)[name] for cls in line.classes if name in options_of(cls)), None
    )
    if name in VALUES or declared is None:
        return VALUES.get(name, "word")
    if declared.type in (int, float):
        return str(max(declared.minimum or 0, 1))
    return declared.choices[0] if declared.choices else "word"


def lines(line: CommandLine) -> Iterator[CommandLine]:
    """Yield the command line, or those of its actions."""
    yield from line.actions.values() if line.actions else [line]


def listed(line: CommandLine) -> list[tuple[str, list[str]]]:
    """Return (spelling, words that follow it) of each option in the help as it is printed."""
    text = line.parser().format_help().partition("show this help")[2]
    shown = "\n".join(re.findall(r"^ {2}-.*$", text, re.MULTILINE))
    spelled = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown))
    found = []
    for action in line.shown_options():
        takes = 0 if action.nargs == 0 else action.nargs if isinstance(action.nargs, int) else 1
        values = [example(line, action.dest)] * takes
        found += [(one, values) for one in action.option_strings if one in spelled]
    assert spelled <= {spelling for spelling, _ in found} | {"--help", "-h"}
    return found


def needed(line: CommandLine) -> list[str]:
    """Return operands for those that have to stand on the command line."""
    return [
        str(action.choices[0]) if isinstance(action.choices, Sequence) else "word"
        for action in line.parser()._actions
        if not action.option_strings and action.nargs in (None, "+")
    ]


LAUNCH = CommandLine("launch_single_task.py", "", (TrainConfig, LaunchConfig))
LINES = [LAUNCH, *(line for command in COMMANDS.values() for line in lines(command.line))]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.prog)
def test_each_option_in_the_help_is_taken(line: CommandLine) -> None:
    for spelling, values in listed(line):
        line.parse([spelling, *values, *needed(line)])


class Reached(GalleryError):
    """Raised when everything was checked and the comparison would begin."""


def reached(*arguments: Any) -> None:
    raise Reached


def test_gallery_compare_begins_with_each_option_in_its_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure.UntimedRuns, "reference", reached)
    monkeypatch.setattr(measure.pretrained, "check_file", lambda config: None)
    for spelling, values in listed(COMPARE):
        other = TOGETHER_WITH.get(spelling.strip("-").replace("-", "_"))
        words = ["--model", VALUES["model"], spelling, *values, *filter(None, [other])]
        with pytest.raises(Reached):
            COMMANDS["compare"].run(words, *COMPARE.parse(words))


def test_gallery_compare_lists_no_option_that_it_decides_itself_and_says_why() -> None:
    for name, reason in COMPARE.fixed.items():
        assert f"--{name}" not in COMPARE.parser().format_help()
        with refused(name, f"`--{name}`", reason):
            COMPARE.parse([f"--{name}", "1"])


def test_the_help_page_has_every_command_in_a_group_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert page == help_page() + "\n"
    for name, command in COMMANDS.items():
        row = rf"^{command.group}\n(  .*\n)*  {name} +{re.escape(command.does)}$"
        assert re.search(row, page, re.MULTILINE)
    assert max(map(len, page.splitlines())) <= 120


def test_the_version_names_the_gallery_torch_and_python(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"]
    versions = f"torch {importlib.metadata.version('torch')}, Python {platform.python_version()}"
    assert (main(["--version"]), launch_single_task(["--version"])) == (0, 0)
    assert capsys.readouterr().out == 2 * f"gallery_lib {declared}, {versions}\n"


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_a_command_line_that_parses(example: str) -> None:
    gallery, name, *words = shlex.split(example)
    assert gallery == "gallery"
    COMMANDS[name].line.parse(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: gallery {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("shwo x", ["`shwo`", "`show`"]),
        ("show", ["FOLDER", "gallery show --help"]),
        ("list x", ["`x`", "gallery list --help"]),
        ("compare before", ["two batches", "got before."]),
        ("compare before after --seed=1", ["two batches", "--seed=1"]),
        ("plot folder picture.pdf", ["picture.pdf", ".png"]),
        ("lab", ["ACTION", "gallery lab --help"]),
        ("lab dwn", ["ACTION", "'dwn'"]),
        ("lab up --hots 2", ["`--hots`", "`--hosts`", "gallery lab up --help"]),
        ("run --resume", ["--resume", "--out"]),
        ("doctor --workers 2", ["--workers", "--roofline"]),
        ("doctor runs/x --roofline resnet50", ["runs/x", "resnet50"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    check_refused_command(code, line, *values)


def test_the_next_steps_of_prepare_sh_suit_the_shell_and_the_notebook(tmp_path: Path) -> None:
    root = tmp_path / "check out"
    (root / "notebooks").mkdir(parents=True)
    for name in ("index", "resnet50", "hf_Bert"):
        (root / "notebooks" / f"{name}.ipynb").touch()
    python, sizes = root / ".venv" / "bin" / "python", "--batch_size 16 --image_size 64"
    assert commands(root, root, python) == [
        "bash prepare.sh --lab",
        f".venv/bin/python launch_single_task.py --model resnet50 {sizes} --compiler-opt",
        f".venv/bin/gallery compare --model resnet50 {sizes}",
    ]
    elsewhere = commands(root, tmp_path, python)
    assert elsewhere[0] == f"bash '{root}/prepare.sh' --lab"
    assert elsewhere[1].startswith(f"'{python}' '{root}/launch_single_task.py' --model")
    words = ["rounds", "4", "batch_size", "2"]
    measured = commands(root, root, Path("/opt/env/bin/python"), "hf_Bert", words)
    assert measured[2].startswith("/opt/env/bin/gallery compare --model hf_Bert --batch_size 2")
    (root / "notebooks" / "resnet50.ipynb").unlink()  # as in a packed task
    assert "--model hf_Bert --batch_size 4 --sequence_length 32" in commands(root, root, python)[1]
