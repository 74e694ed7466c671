"""Options and steps of `prepare.sh`, which executes this file in its own place.

    python -P gallery_lib/cli/preparation/__main__.py ROOT START_FOLDER [options]

The process stays that of `prepare.sh`, so that a signal to it is handled here.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import re
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

_INTERRUPTED = "prepare.sh: interrupted. The same command goes on from here."

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(_number) is not signal.SIG_IGN:  # nothing has been started yet
            signal.signal(
                _number,
                lambda number, _: (
                    os.write(2, f"{_INTERRUPTED}\n".encode()),
                    os._exit(128 + number),
                ),
            )

from gallery_lib.cli.preparation import environment
from gallery_lib.cli.preparation.children import SIGNALS, attend, detail, replace_by, say
from gallery_lib.console.exit_code import prepare_streams
from gallery_lib.errors import GalleryError, InputError, did_you_mean
from gallery_lib.system import paths

DATA_PRESETS = ("small", "imagenet-sized")
DATA_COMMANDS = ("mock_imagenet", "mock_segmentation", "text", "mock_speech", "mock_speakers")
FLAGS = {
    "--lab": "afterwards start JupyterLab with copies of the notebooks, in my_notebooks/; it "
    "listens on this machine alone and asks for a token (JUPYTER_PORT and JUPYTER_TOKEN choose "
    "them)",
    "--test": "also install the tools for development (as root, Debian's chromium, iproute2, "
    "slurm-wlm and munge too), then run every check and all tests but those for a GPU",
    "--into-current": "install what is missing into the active environment instead of .venv, and "
    "leave its torch at the version it has",
    "--lock": "only write requirements.lock anew from pyproject.toml; pins are kept where they "
    "still fit",
}
BUILD_TOOLS = {
    os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"): "g++",
    f"{sysconfig.get_path('include')}/Python.h": "python{}.{}-dev".format(*sys.version_info),
}
"""What torch.compile needs to compile C++: a command or a file, and Debian's package of it."""
TEST_TOOLS = {"chromium": "chromium", "tc": "iproute2", "slurmctld": "slurm-wlm", "munged": "munge"}
"""What some tests need; they are skipped without."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options that `words` give; end with exit code 2 for a wrong one."""
    parser = argparse.ArgumentParser(
        prog="bash prepare.sh",
        allow_abbrev=False,
        description="Make the environment .venv from requirements.lock, register the Jupyter "
        'kernel "Gallery" in it, and make mock data. What is there already is kept, so that a '
        "second run takes seconds.",
    )
    parser.add_argument(
        "--run",
        metavar="NOTEBOOK",
        help="also execute notebooks/NOTEBOOK.ipynb and print what it measured; the executed "
        "notebook and its results go to a new folder in runs/notebooks/",
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="with --run: a parameter of the notebook, checked before anything is made; repeatable",
    )
    parser.add_argument(
        "--data",
        default=DATA_PRESETS[0],
        choices=DATA_PRESETS,
        help="mock data to make (default: %(default)s)",
    )
    for flag, text in FLAGS.items():
        parser.add_argument(flag, action="store_true", help=text)
    options = parser.parse_args(words)
    port = os.environ.get("JUPYTER_PORT", "8888")
    if options.lab and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        parser.error(f"JUPYTER_PORT={port[:40]!r} must be a port, 1 to 65535")
    if options.lab and options.test:
        parser.error("--lab and --test do not go together: --test ends with the tests")
    if options.p and not options.run:
        parser.error("-p gives a parameter to the notebook of --run, which is missing")
    return options


def find_notebook(name: str, root: Path, start_folder: Path) -> Path:
    """Return the path of the notebook `name`: its name, a file name, or a path to it.

    Raises:
        InputError: with the closest name, where there is none.
    """
    folder, stem = root / "notebooks", Path(name).name.removesuffix(".ipynb")
    candidates = [start_folder / name, root / name]
    if "/" not in name:
        candidates.append(folder / f"{stem}.ipynb")
    for path in candidates:
        if path.suffix == ".ipynb" and path.is_file():
            return path.parent.resolve() / path.name
    known = sorted(path.stem for path in folder.glob("*.ipynb"))
    raise InputError(
        f"--run {name!r}: no such notebook.{did_you_mean(stem, known)}\n"
        f"    There are: {' '.join(known)}"
    )


def install_missing(tools: Mapping[str, str]) -> dict[str, str]:
    """Install what is not here, as root on Debian and its kin; return what is still lacking."""

    def lacking() -> dict[str, str]:
        found = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        here = {name for name in tools if Path(name).is_file() or shutil.which(name, path=found)}
        return {name: package for name, package in tools.items() if name not in here}

    if (packages := lacking().values()) and os.geteuid() == 0 and shutil.which("apt-get"):
        detail(f"apt-get install {' '.join(packages)}")
        attend(["apt-get", "update", "-qq"])  # without network, the lists that are here may do
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        for package in packages:  # one that there is none of must not keep the others away
            attend([*install, package], quiet=True)
    return lacking()


class Steps:
    """Numbered steps, each with the seconds that it took."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._began = total, 0, 0.0

    def begin(self, title: str) -> None:
        """Print the end of the step before and the title of the next."""
        self.finish()
        self._number += 1
        self._began = time.monotonic()
        say(f"[{self._number}/{self._total}] {title}")

    def finish(self) -> None:
        """Print how long the current step took, if it was a second or more."""
        if self._number and (seconds := time.monotonic() - self._began) >= 1:
            detail(f"done in {seconds:.0f} s")


@contextlib.contextmanager
def checkout_lock(cache: Path) -> Iterator[None]:
    """Context: hold the lock of a set-up in `cache`; wait for another run that holds it.

    Commands that are started in the context hold it too. A run that is killed thus keeps the next
    one waiting until its last command has ended.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "prepare.lock").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another prepare.sh is at work here: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(root: Path, start_folder: Path, options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit code.

    Raises:
        InputError: for a wrong notebook or parameter, and for something that the machine lacks.
    """
    if options.lock:
        return environment.write_lock(Path(".cache"))
    notebook = find_notebook(options.run, root, start_folder) if options.run is not None else None
    if notebook and options.p:
        from gallery_lib.notebooks.batch import parameters

        parameters.check(notebook, dict(options.p))
    folders = environment.folders_of(root)
    steps = Steps(3 + (notebook is not None) + 2 * options.test)
    with checkout_lock(folders.cache):
        python = _set_up(options, folders, steps)
        steps.begin(f"Mock data, {options.data}")
        if code := _make_data(python, folders.cache, options.data):
            return code
    if notebook:
        steps.begin(f"Running {notebook.name}")
        code = _run_notebook(notebook, options.p, python, folders.runs)
    if options.test:
        return code or _test(python, steps)
    if not notebook:  # whose summary has its duration
        steps.finish()
    if code:
        return code
    if options.lab:
        return replace_by([python, "-m", "gallery_lib.notebooks.jupyterlab", root])
    words = [notebook.stem, *(word for pair in options.p for word in pair)] if notebook else []
    return attend([python, "-m", "gallery_lib.cli.next_steps", start_folder, *words])


def _set_up(options: argparse.Namespace, folders: environment.Folders, steps: Steps) -> Path:
    """Check the machine and prepare the environment; return its Python.

    Raises:
        InputError: the message names all that the machine lacks.
    """
    if not folders.ours:
        say(
            f"{folders.root} is not yours to write in: environment and data go to "
            f"{folders.cache}, runs to {folders.runs}."
        )
    steps.begin("Checking this machine")
    if lacking := install_missing(BUILD_TOOLS):
        lines = [f"no {name} -> apt-get install {package}" for name, package in lacking.items()]
        raise InputError("\n    ".join(["torch.compile lacks something on this machine:", *lines]))
    for name, package in (install_missing(TEST_TOOLS) if options.test else {}).items():
        detail(f"no {name}: the tests that need it will be skipped -> apt-get install {package}")
    extra = environment.DEVELOPMENT if options.test else environment.PLAIN
    target = environment.find_environment(folders, extra, into_current=options.into_current)
    detail(f"Python {platform.python_version()} at {sys.executable}")
    steps.begin(f"The environment, {target.folder}" if target.folder else "The active environment")
    if target.is_ready():
        detail("already there")
    else:
        environment.prepare(target, folders.cache)
    return target.python


def _make_data(python: Path, cache: Path, preset: str) -> int:
    """Make the mock data; return the exit code of the first command that fails, else 0.

    A packed task (`gallery pack`) has the commands of its own data alone. Of each the last line is
    printed, which says what was made.
    """
    log = cache / "mock-data.txt"
    for name in DATA_COMMANDS:
        script = Path("data_prep", f"{name}.py")
        options = ["--preset", preset] if name == "mock_imagenet" else []
        if not script.is_file():
            continue
        if code := attend([python, script, *options], log=log):
            return code
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]:
            detail(line)
    return 0


def _run_notebook(notebook: Path, pairs: Sequence[Sequence[str]], python: Path, runs: Path) -> int:
    """Run the notebook as a batch of one in a new folder of runs; return its exit code."""
    all_runs = Path(os.environ.get("GALLERY_RUNS_DIR") or runs).absolute() / "notebooks"
    folder = paths.free_name(all_runs, f"{time.strftime('%Y%m%d-%H%M%S')}-{notebook.stem}")
    words = [word for pair in pairs for word in ("-p", *pair)]
    return attend([python, "-m", "gallery_lib", "run", notebook, "--out", folder, *words])


def _test(python: Path, steps: Steps) -> int:
    """Run the checks of the code, then pytest in the place of this process."""
    steps.begin("Checking the code")
    written = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
    checks: list[list[str | Path]] = [
        ["ruff", "check", "--quiet", *written, "."],
        ["ruff", "format", "--quiet", "--check", *written, "."],
        ["mypy", "--no-error-summary"],
        ["tests.project.house"],
        ["nbstripout", "--verify", "--keep-id", *sorted(Path("notebooks").glob("*.ipynb"))],
    ]
    failed = []
    for words in checks:
        name = " ".join(map(str, words[:2]))
        detail(name)
        if attend([python, "-m", *words]) != 0:
            failed.append(name)
    if failed:
        print(f"prepare.sh: failed: {', '.join(failed)}. No test was started.", file=sys.stderr)
        return 1
    steps.begin("Testing, everything that needs no GPU")
    durations = ("--durations=60", "--durations-min=15")
    return replace_by([python, "-m", "pytest", "-m", "not gpu and not thorough", *durations])


class _Interrupted(BaseException):
    """A signal has told this process to end; the argument is its exit code."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    raise _Interrupted(130 if number == signal.SIGINT else 143)


def main(root: str, start_folder: str, *words: str) -> int:
    """Prepare the checkout at `root` as the options in `words` say; return the exit code.

    Args:
        root: the checkout.
        start_folder: the folder in which `prepare.sh` was called.
        words: the options of `prepare.sh`.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    os.chdir(root)
    prepare_streams()
    try:
        return prepare(Path(root), Path(start_folder), parse(words))
    except _Interrupted as interruption:
        print(_INTERRUPTED, file=sys.stderr)
        return int(interruption.args[0])
    except BrokenPipeError:  # … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (GalleryError, OSError) as error:
        print(f"prepare.sh: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
