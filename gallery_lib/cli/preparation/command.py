"""The steps of `prepare.sh`, in their order."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.cli.preparation import (
    active_environment,
    checks,
    kernel,
    machine,
    virtual_environment,
)
from gallery_lib.cli.preparation.checkout_lock import checkout_lock
from gallery_lib.cli.preparation.children import attend, replace_by, supervised
from gallery_lib.cli.preparation.environment import (
    Environment,
    environment_of_active_python,
    environment_of_checkout,
)
from gallery_lib.cli.preparation.folders import Folders, folders_of
from gallery_lib.cli.preparation.notebook_run import check_parameters, find_notebook, run_notebook
from gallery_lib.cli.preparation.options import Options, parse
from gallery_lib.cli.preparation.progress import Steps, detail, say
from gallery_lib.cli.preparation.requirements_lock import write_lock
from gallery_lib.cli.preparation.stamp import DEVELOPMENT, PLAIN, write_stamp
from gallery_lib.errors import InputError

DATA_COMMANDS = ("mock_imagenet", "mock_segmentation", "text", "mock_speech", "mock_speakers")


@dataclass(frozen=True)
class Call:
    """How `prepare.sh` was called: `__main__.main` explains the fields."""

    root: str
    start_folder: str
    python: str
    skipped: str
    words: Sequence[str]


def prepare(call: Call) -> int:
    """Do what the options ask for; return the exit code.

    Raises:
        InputError: for a wrong option, and for something that the machine lacks.
    """
    options, root, start_folder = parse(call.words), Path(call.root), Path(call.start_folder)
    if options.lock:
        return write_lock(root, call.python)
    notebook = None
    if options.notebook is not None:
        notebook = find_notebook(options.notebook, root, start_folder)
        check_parameters(notebook, options.parameters)
    folders = folders_of(root)
    steps = Steps(3 + (notebook is not None) + 2 * options.test)
    with checkout_lock(folders.cache):
        python, code = _set_up(call, options, folders, steps)
    if code:
        return code
    if notebook:
        steps.begin(f"Running {notebook.name}")
        code = run_notebook(notebook, options.parameters, python, root, folders.runs)
    if options.test:
        return code or _test(python, root, steps)
    steps.finish()
    if code:
        return code
    if options.lab:
        return replace_by([python, "-m", "gallery_lib.notebooks.jupyterlab", root])
    current = ["--into-current"] if options.into_current else []
    return attend([python, "-m", "gallery_lib.cli.next_steps", start_folder, *current])


def _set_up(call: Call, options: Options, folders: Folders, steps: Steps) -> tuple[Path, int]:
    """Prepare environment and data; return the environment's Python and an exit code."""
    if not folders.ours:
        say(
            f"{folders.root} is not yours to write in: environment and data go to "
            f"{folders.cache}, runs to {folders.runs}."
        )
    steps.begin("Checking this machine")
    environment = _check_machine(call, options, folders)
    if options.into_current:
        steps.begin("The active environment")
    else:
        steps.begin(f"The environment, {environment.folder}")
    _make_ready(environment, call.python, folders)
    steps.begin(f"Mock data, {options.data}")
    return environment.python, _make_data(environment.python, folders.root, options.data)


def _check_machine(call: Call, options: Options, folders: Folders) -> Environment:
    """Return the environment as it is.

    Raises:
        InputError: the message names all that the machine lacks.
    """
    shortcomings = machine.get_build_tools(call.python)
    if options.test:
        machine.get_test_tools()
    extra = DEVELOPMENT if options.test else PLAIN
    if options.into_current:
        environment = environment_of_active_python(folders, call.python, extra)
    else:
        environment = environment_of_checkout(folders, extra)
    if not environment.ready:
        shortcomings += machine.disk_shortcoming(folders)
    if shortcomings:
        raise InputError("\n    ".join(["this machine lacks something:", *map(str, shortcomings)]))
    detail(f"Python {platform.python_version()} at {call.python}")
    if call.skipped:
        detail(f"({call.skipped} was compiled without its optimisations: starts would take longer)")
    return environment


def _make_ready(environment: Environment, python: str, folders: Folders) -> None:
    """Install what the environment lacks, register the kernel, and write the stamp last."""
    if environment.ready:
        detail("already there")
        return
    if environment.folder is None:
        active_environment.add_to(environment, folders.root, folders.cache)
    else:
        virtual_environment.make(environment, environment.folder, python, folders.cache)
    kernel.register(environment.python)
    write_stamp(environment.stamp_file, environment.wanted)


def _make_data(python: Path, root: Path, preset: str) -> int:
    """Make the mock data; return the exit code of the first command that fails, else 0.

    A packed task (`gallery pack`) has the commands of its own data alone.
    """
    for name in DATA_COMMANDS:
        script = Path("data_prep", f"{name}.py")
        options = ["--preset", preset] if name == "mock_imagenet" else []
        if (root / script).is_file() and (code := supervised(python, [script, *options])):
            return code
    return 0


def _test(python: Path, root: Path, steps: Steps) -> int:
    """Run checks and tests; return 1 where a check fails."""
    steps.begin("Checking the code")
    if not checks.check_code(python, root):
        return 1
    steps.begin("Testing, everything that needs no GPU")
    return checks.run_tests(python)
