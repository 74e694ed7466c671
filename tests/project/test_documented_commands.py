"""Every command that a document shows has a program that is there, and options that it takes.

Nothing is carried out here. That commands do their work is in the tests of each command.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from gallery_lib.cli import prepare
from gallery_lib.cli.main import COMMANDS, LAUNCH
from gallery_lib.notebooks import plan
from gallery_lib.notebooks.pack import README

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    *("bash ", "sh ", "python ", "python3 ", "gallery ", "papermill ", "torchrun ", "jupyter "),
    *("uv ", "pip ", ".venv/bin/"),
)
_BLOCK = re.compile(r"^ *(```+|~~~+) *\{?([\w-]*)[^\n]*\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
_SHELL_BLOCKS = ("", "bash", "sh", "shell", "text")
_INDENTED = re.compile(r"^ {4}\s*(\S.*)", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_NAME = re.compile(r"gallery [a-z]+( [a-z]+)?")


def commands_in(markdown: str) -> Iterator[str]:
    """Yield the commands of a Markdown text.

    A command is a line of a block, fenced or indented, or text in single backquotes, that begins
    with one of PROGRAMS. In a block of kind `console` it stands behind `$ `. `gallery show` in a
    sentence is the name of a command, and no command.
    """
    markdown = markdown.replace("\\\n", " ")
    outside = _BLOCK.sub("", markdown)
    lines = _INDENTED.findall(outside)
    lines += (text for text in _INLINE.findall(outside) if not _NAME.fullmatch(text))
    for _, kind, block in _BLOCK.findall(markdown):
        written = [line.strip() for line in block.splitlines()]
        if kind == "console":
            yield from (line.removeprefix("$ ") for line in written if line.startswith("$ "))
        elif kind in _SHELL_BLOCKS:
            lines += written
    yield from (line for line in lines if line.startswith(PROGRAMS))


def documented() -> dict[str, str]:
    """Return each command that a document for readers shows, and the first file that has it."""
    places = ("README.md", "CONTRIBUTING.md", "docs/guides/*.md", "notebooks/template.md")
    places += ("notebooks/whole/*.md", "notebooks/pages/*.md")
    found: dict[str, str] = {}
    for file in (file for place in places for file in sorted(CHECKOUT.glob(place))):
        for command in commands_in(file.read_text(encoding="utf-8")):
            found.setdefault(command, file.relative_to(CHECKOUT).as_posix())
    packed = commands_in(README.format(title="AlexNet", name="alexnet"))
    return found | dict.fromkeys(packed, "the packed README")


SHOWN = documented()
assert len(SHOWN) > 60
OF_THE_ENVIRONMENT = ("mypy", "nbstripout", "ruff", "sphinx-build", "papermill", "torchrun")
READERS_OWN = ("train.py", "mobilenet_v3", "${name}")
"""Scripts and tasks that only a reader has."""


@functools.cache
def sources_of(*script: str) -> str:
    """Return the sources in which a script, or an `-m` module, declares its options."""
    if script[0] == "-m":
        spec = importlib.util.find_spec(script[1])
        assert spec is not None and spec.origin is not None, script
        own = Path(spec.origin)
        files = list(own.parent.glob("*.py")) if own.name == "__init__.py" else [own]
    else:
        files = [CHECKOUT / script[0], *(CHECKOUT / "benchmarks").glob("*.py")]
    files += (CHECKOUT / "gallery_lib" / "config").glob("*.py")
    return "\n".join(file.read_text(encoding="utf-8") for file in files).replace("-", "_")


def check_script(words: list[str]) -> None:
    """Check that a script or `-m` module is there, and declares each option that follows."""
    length = 2 if words[0] == "-m" else 1
    script, rest = words[:length], words[length:]
    if script[-1] in READERS_OWN:
        return
    if script == ["launch_single_task.py"]:
        LAUNCH.parse(rest)
        return
    sources = sources_of(*script)
    for word in rest:
        if word.startswith("--") and script[-1] != "pytest":
            name = word[2:].partition("=")[0].replace("-", "_")
            assert re.search(rf"\b_*{name}\b", sources), f"{script} has no {word}"


def check_pip(words: list[str]) -> None:
    """Check that an installation is of this package, with extras that it has."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    (package,) = (word for word in words[1:] if word != "-e")
    place, _, extras = package.rstrip("]").partition("[")
    assert place.split(" @ ")[0] in (".", project["name"])
    assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"])


def check_papermill(words: list[str]) -> None:
    """Check a notebook and its parameters as `gallery run` does."""
    path = CHECKOUT / words[0].replace("${name}", "resnet50")
    if path.stem not in READERS_OWN:
        plan.check(path, dict(zip(words[3::3], words[4::3], strict=True)))


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
            length = 2 if words[0] in ("lab", "cache") else 1
            COMMANDS[" ".join(words[:length])].line.parse(words[length:])
        elif name in ("python", "python3"):
            check_script(words)
        elif name == "papermill":
            check_papermill(words)
        elif name == "pip":
            check_pip(words)
        elif name == "torchrun":
            given = get_args_parser().parse_args(words)
            module = ["-m"] if given.module else []
            check_script([*module, given.training_script, *given.training_script_args])
        else:
            assert name in (*OF_THE_ENVIRONMENT, "uv"), name


@pytest.mark.parametrize("text", SHOWN, ids=[f"{SHOWN[text]}: {text}" for text in SHOWN])
def test_a_documented_command_is_one_that_exists(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "bash prepare.sh --runn resnet50",
        "python3 launch_single_task.py --batch_sise 4",
        ".venv/bin/gallery shwo FOLDER",
        ".venv/bin/gallery compare --model resnet18 --max_steps 4",
        "python3 data_prep/mock_imagenet.py --clases 4",
        "python3 benchmarks/none.py",
        'pip install ".[notbooks]"',
        ".venv/bin/papermill notebooks/resnet50.ipynb out.ipynb -p batch_sise 4",
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str) -> None:
    with pytest.raises((AssertionError, LookupError, ValueError, OSError)):
        check(text)
