"""Table of documented commands that a test does not carry out, and what is checked instead.

A command takes long, or needs what a test may not have.
"""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from project.documented_commands import Command
from project.fresh_clone import Clone
from project.prepare.small_checkout import small_checkout

from gallery_lib.cli.commands import COMMANDS

CHECKOUT = Path(__file__).resolve().parents[2]
TINY = "tests/helpers/tiny_task.py:TASK"


class Instead(NamedTuple):
    """A check in the place of commands that match, in documents whose place begins with `where`."""

    pattern: str
    check: Callable[[Clone, str], None]
    where: str = ""

    def takes(self, command: Command) -> bool:
        is_there = command.where.startswith(self.where)
        return is_there and re.match(self.pattern, command.text, re.DOTALL) is not None


@functools.cache  # several documents show the same one
def succeeds(clone: Clone, text: str) -> str:
    """Carry the command out and return what it prints."""
    done = clone.run(text)
    assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def words_of(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", " "), comments=True)


def with_options(options: str) -> Callable[[Clone, str], None]:
    """Carry it out with more options, of which the last counts."""
    return lambda clone, text: void(succeeds(clone, f"{shlex.join(words_of(text))} {options}"))


def void(_: object) -> None:
    """Return nothing."""


def sets_up(clone: Clone, text: str) -> None:
    """Carry out the real prepare.sh with the same options.

    What it would install and execute is noted instead.
    """
    copy = small_checkout(clone.root, clone.home / f"{abs(hash(text))}")
    shutil.copytree(clone.root / "notebooks", copy.root / "notebooks", dirs_exist_ok=True)
    bash, script, *options = words_of(text)
    assert (bash, script) == ("bash", "prepare.sh")
    done = copy.run(*options)
    assert done.returncode == 0, done.stderr
    assert copy.notes()


def has_valid_options(_: Clone, text: str) -> None:
    """Check a `gallery` command's options as the command does before it starts anything."""
    gallery, name, *words = words_of(text)
    assert gallery == ".venv/bin/gallery"
    COMMANDS[name].line.parse(words)


def job_has_valid_options(clone: Clone, text: str) -> None:
    """Check that the batch file is there, and the options of a task behind it."""
    words = words_of(text)
    place = next(at for at, word in enumerate(words) if word.endswith(".sh"))
    assert (clone.root / words[place]).is_file()
    program, *options = words[place + 1 :]
    if not program.endswith(".py"):  # the reader's script
        launch = f".venv/bin/python launch_single_task.py --model={program} --dry-run"
        succeeds(clone, f"{launch} {shlex.join(options)}")


def has_help_with_its_options(clone: Clone, text: str) -> None:
    """Check that the script is there, can be started, and lists each option in its help."""
    words = words_of(text)
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    help_text = succeeds(clone, f"{shlex.join(words[:first])} --help")
    for word in words[first:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in help_text, f"{text}: the help does not list {word}"


def torchrun_takes(clone: Clone, text: str) -> None:
    """Check torchrun's options with its own parser, and those of a script of ours by its help."""
    from torch.distributed.run import get_args_parser

    assert (clone.root / ".venv/bin/torchrun").exists()
    asked = get_args_parser().parse_args(words_of(text)[1:])
    script = ["-m", asked.training_script] if asked.module else [asked.training_script]
    if script != ["train.py"]:  # the reader's
        words = [".venv/bin/python", *script, *asked.training_script_args]
        has_help_with_its_options(clone, shlex.join(words))


def is_there(clone: Clone, text: str) -> None:
    """Check that the program of the environment starts."""
    succeeds(clone, f"{words_of(text)[0]} --version")


def is_a_module(clone: Clone, text: str) -> None:
    """Check that the module can be imported."""
    python, _, module, *_ = words_of(text)
    succeeds(clone, f"{python} -c 'import {module}'")


def knows_tests(_: Clone, text: str) -> None:
    """Check that the folders of tests and their marks are there."""
    words = words_of(text)[3:]
    tools = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]
    marks = {mark.partition(":")[0] for mark in tools["pytest"]["ini_options"]["markers"]}
    if "-m" in words:
        expression = words.pop(words.index("-m") + 1)
        words.remove("-m")
        assert set(re.findall(r"\w+", expression)) - {"not", "or", "and"} <= marks
    assert all((CHECKOUT / word).exists() for word in words)


def notebook_takes_parameters(clone: Clone, text: str) -> None:
    """Check that papermill starts, and the parameters as `gallery run` does."""
    papermill, notebook, _, *parameters = words_of(text)
    succeeds(clone, f"{papermill} --version")
    check = (
        "import sys; from pathlib import Path; from gallery_lib.notebooks.batch import "
        "notebook_file; "
        "notebook_file.check(Path(sys.argv[1]), dict(zip(sys.argv[3::3], sys.argv[4::3])))"
    )
    words = shlex.join([".venv/bin/python", "-c", check, notebook, *parameters])
    succeeds(clone, words)


FEW_STEPS = "--model=alexnet --image_size=64 --batch_size=2 --max_steps=3 --no_evaluate"
FEW_TURNS = f"--model={TINY} --rounds=4 --block_steps=2 --parity_steps=1"
ROOFLINE = f"--roofline={TINY} --rounds=1 --no-compiler-opt --batch-size=4 --workers=0"
LAUNCH, GALLERY, PYTHON = r"python3 launch_single_task\.py ", r"\.venv/bin/gallery ", r"\.venv/bin/"
INSTEAD = [
    # It installs for minutes, and executes notebooks.
    Instead(r"bash prepare\.sh", sets_up),
    # These train for minutes, or need several machines of 8 devices.
    Instead(rf"{LAUNCH}(?!.*--nnodes)", with_options(FEW_STEPS), "README"),
    Instead(rf"{LAUNCH}.*--nnodes", with_options("--dry_run --nproc_per_node=1")),
    Instead(LAUNCH, with_options("--dry_run")),
    Instead(
        rf"{GALLERY}compare --(model|image_size|batch_size|amp_level)",
        with_options(FEW_TURNS),
        "README",
    ),
    Instead(rf"{GALLERY}doctor --roofline", with_options(ROOFLINE)),
    Instead(rf"{GALLERY}(compare --|bench|run|pack)(?!.*--help)", has_valid_options),
    # These need namespaces, Slurm, several machines or a script of the reader's.
    Instead(rf"{GALLERY}lab (up|run|down)", has_valid_options),
    Instead(r"sbatch .*docs/examples/slurm\.sh", job_has_valid_options),
    Instead(rf"{PYTHON}torchrun", torchrun_takes),
    # tests/notebooks executes each notebook, tests/project/test_own_script.py makes the website.
    Instead(rf"{PYTHON}papermill", notebook_takes_parameters),
    Instead(rf"{PYTHON}sphinx-build", is_there),
    # These measure, prove or compile for minutes to hours.
    Instead(rf"(python3|{PYTHON}python) benchmarks/", has_help_with_its_options),
    Instead(
        rf"{PYTHON}python (-m tests\.(against_torch|faults|checkpoint)|tests/cuda_on_host)",
        has_help_with_its_options,
    ),
    Instead(rf"{PYTHON}python -m pytest", knows_tests),
    Instead(rf"{PYTHON}python -m gallery_lib\.kernels\.resources", is_a_module),
    Instead(rf"{PYTHON}mypy", with_options("--version")),
]


def instead_of(command: Command) -> Instead | None:
    """Return the check in place of the command; None when it is carried out."""
    return next((entry for entry in INSTEAD if entry.takes(command)), None)
