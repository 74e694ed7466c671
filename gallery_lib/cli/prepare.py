"""What `prepare.sh` does in its own place once it has found a Python: options and steps.

An environment has a stamp, written last: a digest of all that it was made from. One with another
stamp, or none, is made anew. The module needs the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.config.options import CommandLine
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import paths
from gallery_lib.system.files import locked
from gallery_lib.system.processes import adopt_orphans, die_with_parent, shell_exit_code

ROOT = Path(__file__).resolve().parents[2]
# The extras: the packages that the gallery needs, or all that pyproject.toml names.
PLAIN, DEVELOPMENT = "plain", "dev"
DATA_COMMANDS = ("mock_imagenet", "mock_segmentation", "text", "mock_speech", "mock_speakers")
# What torch.compile needs to compile C++: a command or a file, and Debian's package of it.
BUILD_TOOLS = {
    os.environ.get("CXX") or "g++": "g++",
    f"{sysconfig.get_path('include')}/Python.h": "python{}.{}-dev".format(*sys.version_info),
}
TEST_TOOLS = {"chromium": "chromium", "tc": "iproute2", "slurmctld": "slurm-wlm", "munged": "munge"}
STAMP = "gallery-stamp"
PACKAGES = ("torch", "torchvision", "jupyterlab", "gallery_lib")
IS_COMPLETE = f"import importlib.util as u; exit(not all(map(u.find_spec, {PACKAGES})))"
NEXT = """
Next, in {root}:
  bash prepare.sh --lab                     the notebooks in JupyterLab
  .venv/bin/gallery run --profile quick     all of them, headless, at small sizes
  .venv/bin/gallery --help                  more, such as one training in turns"""


def main(start_folder: str, *words: str) -> int:
    """Prepare this checkout as `words`, given in `start_folder`, say; return the exit code."""

    def body() -> int:
        os.chdir(ROOT)
        return prepare(Path(start_folder), parse(words))

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    stopped = "prepare.sh: interrupted. The same command goes on from here."
    return exit_code_of(body, error_prefix="prepare.sh", interrupted=stopped)


LINE = CommandLine(
    "bash prepare.sh",
    "Make the environment .venv from requirements.lock, register the Jupyter kernel "
    '"Gallery" in it, and make mock data.\n'
    "What is there already is kept, so that a second run takes seconds.",
    operands={
        "--run": {
            "metavar": "NOTEBOOK",
            "help": "also run this notebook in a new folder of runs/notebooks/, and print its "
            "results",
        },
        "-p": {
            **{"nargs": 2, "action": "append", "default": [], "metavar": ("NAME", "VALUE")},
            "help": "with --run: a parameter of the notebook, checked before anything is made; "
            "repeatable",
        },
        "--lab": {
            "action": "store_true",
            "help": "afterwards start JupyterLab with copies of the notebooks, on this machine "
            "alone",
        },
        "--test": {
            "action": "store_true",
            "help": "also install the tools for development (as root, Debian packages too), then "
            "run all tests but those for a GPU",
        },
    },
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options that `words` give; raise InputError for a wrong one."""
    (options,) = LINE.parse(words)
    if options.lab and options.test:
        raise InputError("--lab and --test do not go together: --test ends with the tests.")
    if options.p and not options.run:
        raise InputError("-p gives a parameter to the notebook of --run, which is missing.")
    port = os.environ.get("JUPYTER_PORT", "")
    if options.lab and port and not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise InputError(f"JUPYTER_PORT={port!r} is no port: a number up to 65535 is.")
    return options  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------------
# Steps


def prepare(start_folder: Path, options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit code."""
    notebook = None
    if options.run is not None:
        notebook = find_notebook(options.run, start_folder)
        if options.p:
            from gallery_lib.notebooks import plan

            plan.check(notebook, dict(options.p))
    total, numbers = 3 + (notebook is not None) + options.test, itertools.count(1)

    def begin(title: str) -> None:
        say(f"[{next(numbers)}/{total}] {title}")

    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    wait = "Another prepare.sh is at work here: waiting for it."
    with locked(paths.cache_dir() / "prepare.lock", waiting=lambda: say(wait)):
        begin("Checking this machine")
        check_machine(for_tests=options.test)
        extra = DEVELOPMENT if options.test else PLAIN
        environment = ROOT / ".venv"
        python = environment / "bin" / "python"
        begin(f"The environment, {environment}")
        if is_ready(environment, extra):
            say("      already there")
        else:
            make(environment, extra)
        begin("Mock data")
        scripts = (Path("data_prep", f"{name}.py") for name in DATA_COMMANDS)
        # A packed task has the commands of its own data alone.
        code = next(filter(None, (run(python, one) for one in scripts if one.is_file())), 0)
    if notebook and not code:
        begin(f"Running {notebook.name}")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{notebook.stem}"
        folder = paths.free_name(paths.runs_dir() / "notebooks", name)
        given = [word for pair in options.p for word in ("-p", *pair)]
        code = run(python, "-m", "gallery_lib", "run", notebook, "--out", folder, *given)
    if options.test and not code:
        begin("Checking the code and testing, everything that needs no GPU")
        durations = ("--durations=60", "--durations-min=15")
        replace_by(python, "-m", "pytest", "-m", "not gpu and not thorough", *durations)
    if code:
        return code
    if options.lab:
        replace_by(python, "-m", "gallery_lib.notebooks.jupyterlab", ROOT)
    say(NEXT.format(root=ROOT))
    return 0


def find_notebook(name: str, start_folder: Path) -> Path:
    """Return the path of the notebook with this name, file name or path."""
    folder, stem = ROOT / "notebooks", name.removesuffix(".ipynb")
    for path in (start_folder / name, ROOT / name, folder / f"{stem}.ipynb"):
        if path.suffix == ".ipynb" and path.is_file():
            return path.parent.resolve() / path.name
    known = sorted(path.stem for path in folder.glob("*.ipynb"))
    raise InputError(
        f"--run {name!r}: no such notebook.{did_you_mean(stem, known)}\n"
        f"    There are: {' '.join(known)}"
    )


def check_machine(*, for_tests: bool) -> None:
    """Install what is missing, as root on Debian and its kin, and name what is still lacking."""
    tools = BUILD_TOOLS | (TEST_TOOLS if for_tests else {})
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

    def lacking() -> dict[str, str]:
        here = {name for name in tools if Path(name).is_file() or shutil.which(name, path=search)}
        return {name: package for name, package in tools.items() if name not in here}

    if (packages := lacking().values()) and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"      apt-get install {' '.join(packages)}")
        run("apt-get", "update", "-qq")  # without network, the lists that are here may do
        for package in packages:  # one that there is none of must not keep the others away
            run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    lines = [f"no {name} -> apt-get install {package}" for name, package in lacking().items()]
    if lacking().keys() & BUILD_TOOLS:
        raise InputError("\n    ".join(["torch.compile lacks something on this machine:", *lines]))
    for line in lines:
        say(f"      the tests that need it will be skipped: {line}")
    say(f"      Python {platform.python_version()} at {sys.executable}")


# --------------------------------------------------------------------------------------------------
# The environment


def stamp_of(extra: str) -> str:
    """Return the stamp of an environment that is up to date: a digest of all that decides on it."""
    requirements = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "requirements.lock")]
    parts = [os.fsencode(ROOT), sys.version.encode(), extra.encode(), *requirements]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_ready(environment: Path, extra: str) -> bool:
    """Return whether nothing is left to install; tools for development do no harm."""
    with contextlib.suppress(OSError):  # there is no stamp
        if (environment / STAMP).read_text() in (stamp_of(extra), stamp_of(DEVELOPMENT)):
            return starts(environment / "bin" / "python", "-P", "-c", IS_COMPLETE)
    return False


def make(environment: Path, extra: str) -> None:
    """Make the environment for this Python anew, and write the stamp last.

    The lock serves as constraints: each package must be in it, at its version and with its hash.
    Packages are compiled to bytecode here, once: on a machine that keeps none every process would,
    and the import of torch and its compiler would take three times as long.
    """
    settings, python = environment / "pyvenv.cfg", environment / "bin" / "python"
    of_gallery = {"prompt = gallery", "prompt = 'gallery'"}  # uv's line, and that of venv
    if settings.is_file() and not of_gallery & {*settings.read_text("utf-8").splitlines()}:
        raise InputError(
            f"{environment} is there, but was not made by prepare.sh. Move it away.\n"
            "    To install into an environment of your own: pip install -e ."
        )
    os.environ["UV_HTTP_TIMEOUT"] = os.environ.get("UV_HTTP_TIMEOUT") or "180"
    if not os.access(os.environ.get("HOME", ""), os.W_OK):
        os.environ.setdefault("UV_CACHE_DIR", str(paths.cache_dir() / "uv"))
    if environment.is_symlink():
        environment.unlink()
    elif environment.exists():
        say(f"      {environment} is incomplete or of another set-up: making it anew")
        shutil.rmtree(environment)
    named: list[str | Path] = ["--prompt", "gallery", environment]
    uv: str | Path = "uv"
    making = [[uv, "venv", "--quiet", "--python", sys.executable, *named]]
    if not starts(uv, "--version"):
        uv = python.with_name("uv")
        making = [
            [sys.executable, "-m", "venv", *named],
            [python.with_name("pip"), "install", "-qq", "uv"],
        ]
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    install: list[str | Path] = [uv, "pip", "install", *quiet, "--python", python]
    named_extras = [f"--extra={name}" for name in ("tasks", "notebooks", "cuda")]
    extras = ["--all-extras"] if extra == DEVELOPMENT else named_extras
    packages = ["--compile-bytecode", "--require-hashes", "-r", "pyproject.toml", *extras]
    for command in (
        *making,
        [*install, *packages, "-c", "requirements.lock"],
        [*install, "--no-deps", "-e", "."],
        kernel_command(python),
    ):
        if run(*command) != 0:
            raise InputError(
                "the environment could not be made; the reason is above.\n"
                "    Without network or behind a proxy: set HTTPS_PROXY, or UV_DEFAULT_INDEX for a "
                "package index of your own.\n"
                '    For "invalid peer certificate": UV_SYSTEM_CERTS=1, or SSL_CERT_FILE=FILE.\n'
                "    Run the same command again afterwards: what was downloaded is kept."
            )
    (environment / STAMP).write_text(stamp_of(extra))


def kernel_command(python: Path) -> list[str | Path]:
    """Return the command that registers the kernel "Gallery" in the environment of `python`."""
    words = ["-m", "ipykernel", "install", "--sys-prefix", "--name", "gallery"]
    # `!python` in a cell is then the notebook's own Python.
    path = ("--env", "PATH", f"{python.parent}:${{PATH}}")
    return [python, *words, "--display-name", "Gallery", *path]


# --------------------------------------------------------------------------------------------------
# Commands


def run(*command: str | Path) -> int:
    """Run the command to its end and return its exit code, as a shell gives it.

    It has no standard input, and a session of its own, so that Ctrl-C reaches this process alone.
    An exception here ends the command with all that it has started.
    """
    words = [str(word) for word in command]
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )
    try:
        return shell_exit_code(process.wait())
    except BaseException:
        _end_group(process.pid)
        raise


def _end_group(group: int) -> None:
    """End every process of a group below this one; return when all are gone."""
    adopt_orphans()  # which can then be waited for
    deadline = time.monotonic() + 10.0
    with contextlib.suppress(OSError):  # none is left
        os.killpg(group, signal.SIGTERM)
        while (now := time.monotonic()) < deadline + 1:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)
            os.killpg(group, signal.SIGKILL if now > deadline else 0)
            time.sleep(0.02)


def starts(*command: str | Path) -> bool:
    """Return whether the command can be started and ends with 0."""
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    except OSError:
        return False
    return done.returncode == 0


def replace_by(*command: str | Path) -> None:
    """Execute the command in the place of this process; does not return."""
    sys.stdout.flush()
    os.execv(str(command[0]), [str(word) for word in command])


def say(text: str) -> None:
    """Print a line now: the commands that follow write to the same output."""
    print(text, flush=True)
