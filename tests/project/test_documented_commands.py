"""Every command that a document shows has a program that is there, and options that it takes.

Nothing is carried out here. That commands do their work is in the tests of each command.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from project.documented_commands import Command, commands_in, documented
from torch.distributed.run import get_args_parser

from gallery_lib.cli import prepare
from gallery_lib.cli.main import COMMANDS, LAUNCH
from gallery_lib.notebooks.batch import notebook_file
from gallery_lib.notebooks.pack import README

CHECKOUT = Path(__file__).resolve().parents[2]
SHOWN = [
    *documented(CHECKOUT),
    *commands_in(README.format(title="AlexNet", name="alexnet"), "the packed README"),
]
OF_THE_ENVIRONMENT = ("mypy", "nbstripout", "ruff", "sphinx-build", "papermill", "torchrun")
READERS_OWN = ("train.py", "mobilenet_v3", "${name}")
"""Scripts and tasks that only a reader has."""


@functools.cache
def help_of(*words: str) -> str:
    """Return the help of a script of the checkout, or of a module."""
    line = [sys.executable, *words, "--help"]
    done = subprocess.run(line, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_script(words: list[str]) -> None:
    """Check that a script or `-m` module is there, and lists each option that follows."""
    length = 2 if words[0] == "-m" else 1
    script, rest = words[:length], words[length:]
    if script[-1] in READERS_OWN:
        return
    if script == ["launch_single_task.py"]:
        LAUNCH.parse(rest)
        return
    if script[0] == "-m":
        assert importlib.util.find_spec(script[1]), script
    else:
        assert (CHECKOUT / script[0]).is_file(), script
    if script[-1] in ("pytest", "gallery_lib.launcher.torchrun"):
        return
    action = [rest[0]] if script[0] == "benchmarks/network.py" else []
    text = help_of(*script, *action) if any(word.startswith("--") for word in rest) else ""
    for word in rest:
        if word.startswith("--"):
            name = word.partition("=")[0]
            assert name in text or name.replace("_", "-") in text, f"{script} lists no {name}"


def check_gallery(words: list[str]) -> None:
    """Check the options of a `gallery` command as the command does before it starts anything."""
    length = 2 if words[0] == "lab" else 1
    COMMANDS[" ".join(words[:length])].line.parse(words[length:])


def check_papermill(words: list[str]) -> None:
    """Check a notebook and its parameters as `gallery run` does."""
    path = CHECKOUT / words[0].replace("${name}", "resnet50")
    if path.stem not in READERS_OWN:
        notebook_file.check(path, dict(zip(words[3::3], words[4::3], strict=True)))


def check(text: str) -> None:
    text = text.replace("\\\n", " ")
    for part in text.split("&&"):
        program, *words = shlex.split(re.sub(r" > \S+", "", part), comments=True)
        name = Path(program).name
        if name == "bash":
            assert words[0] == "prepare.sh"
            prepare.parse(words[1:])
        elif name == "sbatch":
            at = words.index("docs/examples/slurm.sh")
            assert (CHECKOUT / words[at]).is_file()
            if words[at + 1] not in READERS_OWN:
                LAUNCH.parse([f"--model={words[at + 1]}", *words[at + 2 :]])
        elif name == "gallery":
            check_gallery(words)
        elif name in ("python", "python3"):
            check_script(words)
        elif name == "papermill":
            check_papermill(words)
        elif name == "torchrun":
            given = get_args_parser().parse_args(words)
            module = ["-m"] if given.module else []
            check_script([*module, given.training_script, *given.training_script_args])
        else:
            assert name in (*OF_THE_ENVIRONMENT, "uv"), name


@pytest.mark.parametrize("command", SHOWN, ids=str)
def test_a_documented_command_is_one_that_exists(command: Command) -> None:
    check(command.text)


@pytest.mark.parametrize(
    "text",
    [
        "bash prepare.sh --runn resnet50",
        "python3 launch_single_task.py --batch_sise 4",
        ".venv/bin/gallery shwo FOLDER",
        ".venv/bin/gallery compare --model resnet18 --max_steps 4",
        "python3 data_prep/mock_imagenet.py --clases 4",
        "python3 benchmarks/none.py",
        ".venv/bin/papermill notebooks/resnet50.ipynb out.ipynb -p batch_sise 4",
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str) -> None:
    with pytest.raises((AssertionError, LookupError, ValueError)):
        check(text)


def test_documents_show_commands() -> None:
    assert len(SHOWN) > 60
