"""What `prepare.sh` does in its own place once it has found a Python: options and steps.

An environment has a stamp, written last: what it was made from, what it should hold, and with which
extra. Without one it is incomplete. A change of the first word means making it anew, of the others
installing on top. The module needs the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.visible import unescaped, visible
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import paths
from gallery_lib.system.files import locked
from gallery_lib.system.processes import adopt_orphans, die_with_parent, shell_exit_code

ROOT = Path(__file__).resolve().parents[2]
PLAIN, DEVELOPMENT = "plain", "dev"
"""The extras: the packages that the gallery needs, or all that pyproject.toml names."""
DATA_PRESETS = ("small", "imagenet-sized")
DATA_COMMANDS = ("mock_imagenet", "mock_segmentation", "text", "mock_speech", "mock_speakers")
FLAGS = {
    "--lab": "afterwards start JupyterLab with copies of the notebooks, in my_notebooks/; it "
    "listens on this machine alone and asks for a token (JUPYTER_PORT and JUPYTER_TOKEN choose "
    "them)",
    "--test": "also install the tools for development (as root, Debian packages too), then run "
    "every check and all tests but those for a GPU",
    "--lock": "only write requirements.lock anew from pyproject.toml; pins are kept where they "
    "still fit",
}
BUILD_TOOLS = {
    os.environ.get("CXX") or "g++": "g++",
    f"{sysconfig.get_path('include')}/Python.h": "python{}.{}-dev".format(*sys.version_info),
}
"""What torch.compile needs to compile C++: a command or a file, and Debian's package of it."""
TEST_TOOLS = {"chromium": "chromium", "tc": "iproute2", "slurmctld": "slurm-wlm", "munged": "munge"}
STAMP = "gallery-stamp"
LINE_SECONDS = 60.0
"""Seconds between two lines about an installation, where the output is no terminal."""
PACKAGES = ("torch", "torchvision", "jupyterlab", "gallery_lib")
IS_COMPLETE = f"import importlib.util as u; exit(not all(map(u.find_spec, {PACKAGES})))"


def main(start_folder: str, *words: str) -> int:
    """Prepare this checkout as `words`, given in `start_folder`, say; return the exit code."""

    def body() -> int:
        os.chdir(ROOT)
        return prepare(Path(start_folder), parse(words))

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    stopped = "prepare.sh: interrupted. The same command goes on from here."
    return exit_code_of(body, error_prefix="prepare.sh", interrupted=stopped)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options that `words` give; end with exit code 2 for a wrong one."""
    parser = argparse.ArgumentParser(
        prog="bash prepare.sh",
        allow_abbrev=False,
        description="Make the environment .venv from requirements.lock, register the Jupyter "
        'kernel "Gallery" in it, and make mock data. What is there already is kept, so that a '
        "second run takes seconds.",
    )
    run_help = "also run this notebook in a new folder of runs/notebooks/, and print its results"
    given = "with --run: a parameter of the notebook, checked before anything is made; repeatable"
    pair = ("NAME", "VALUE")
    parser.add_argument("--run", metavar="NOTEBOOK", help=run_help)
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=pair, help=given)
    data_help = "mock data to make (default: %(default)s)"
    parser.add_argument("--data", default="small", choices=DATA_PRESETS, help=data_help)
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


# --------------------------------------------------------------------------------------------------
# Steps


def prepare(start_folder: Path, options: argparse.Namespace) -> int:
    """Do what the options ask for; return the exit code."""
    if options.lock:
        return write_lock()
    notebook = None
    if options.run is not None:
        notebook = find_notebook(options.run, start_folder)
        if options.p:
            from gallery_lib.notebooks.batch import notebook_file

            notebook_file.check(notebook, dict(options.p))
    total, numbers = 3 + (notebook is not None) + 2 * options.test, itertools.count(1)

    def begin(title: str) -> None:
        say(f"[{next(numbers)}/{total}] {title}")

    paths.cache_dir().mkdir(parents=True, exist_ok=True)
    wait = "Another prepare.sh is at work here: waiting for it."
    with locked(paths.cache_dir() / "prepare.lock", waiting=lambda: say(wait)):
        begin("Checking this machine")
        check_machine(for_tests=options.test)
        extra = DEVELOPMENT if options.test else PLAIN
        environment = ROOT / ".venv"
        begin(f"The environment, {environment}")
        if is_ready(environment, extra):
            detail("already there")
        else:
            make(environment, extra)
        python = environment / "bin" / "python"
        begin(f"Mock data, {options.data}")
        code = make_data(python, options.data)
    if notebook and not code:
        begin(f"Running {notebook.name}")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{notebook.stem}"
        folder = paths.free_name(paths.runs_dir() / "notebooks", name)
        given = [word for pair in options.p for word in ("-p", *pair)]
        code = run(python, "-m", "gallery_lib", "run", notebook, "--out", folder, *given)
    if options.test and not code:
        begin("Checking the code")
        if check_code(python):
            return 1
        begin("Testing, everything that needs no GPU")
        durations = ("--durations=60", "--durations-min=15")
        replace_by(python, "-m", "pytest", "-m", "not gpu and not thorough", *durations)
    if code:
        return code
    if options.lab:
        replace_by(python, "-m", "gallery_lib.notebooks.jupyterlab", ROOT)
    about = [notebook.stem, *itertools.chain(*options.p)] if notebook else []
    return run(python, "-m", "gallery_lib.cli.next_steps", start_folder, *about)


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
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

    def lacking() -> dict[str, str]:
        tools = BUILD_TOOLS | (TEST_TOOLS if for_tests else {})
        here = {name for name in tools if Path(name).is_file() or shutil.which(name, path=search)}
        return {name: package for name, package in tools.items() if name not in here}

    if (packages := lacking().values()) and os.geteuid() == 0 and shutil.which("apt-get"):
        detail(f"apt-get install {' '.join(packages)}")
        run("apt-get", "update", "-qq")  # without network, the lists that are here may do
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        for package in packages:  # one that there is none of must not keep the others away
            run(*install, package, quiet=True)
    lines = [f"no {name} -> apt-get install {package}" for name, package in lacking().items()]
    if lacking().keys() & BUILD_TOOLS:
        raise InputError("\n    ".join(["torch.compile lacks something on this machine:", *lines]))
    for line in lines:
        detail(f"the tests that need it will be skipped: {line}")
    detail(f"Python {platform.python_version()} at {sys.executable}")


def make_data(python: Path, preset: str) -> int:
    """Make the mock data; return the exit code of the first command that fails, else 0."""
    log = paths.cache_dir() / "mock-data.txt"
    for name in DATA_COMMANDS:
        script = Path("data_prep", f"{name}.py")
        options = ["--preset", preset] if name == "mock_imagenet" else []
        if not script.is_file():  # a packed task has the commands of its own data alone
            continue
        if code := run(python, script, *options, log=log):
            return code
        for line in last_lines(log, 1):
            detail(line)
    return 0


def check_code(python: Path) -> int:
    """Check style, types, the rules of the house and the notebooks; return 1 for a fault."""
    written = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
    checks: list[list[str | Path]] = [
        ["ruff", "check", "--quiet", *written, "."],
        ["ruff", "format", "--quiet", "--check", *written, "."],
        ["mypy", "--no-error-summary"],
        ["tests.project.house"],
        ["nbstripout", "--verify", "--keep-id", *sorted(Path("notebooks").glob("*.ipynb"))],
    ]
    failed = [" ".join(map(str, words[:2])) for words in checks if run(python, "-m", *words) != 0]
    if failed:
        print(f"prepare.sh: failed: {', '.join(failed)}. No test was started.", file=sys.stderr)
    return 1 if failed else 0


# --------------------------------------------------------------------------------------------------
# The environment


def stamp_of(environment: Path) -> list[str]:
    """Return the words of an environment's stamp; none where there is no whole one."""
    with contextlib.suppress(OSError):  # there is none, or it is closed to this user
        return (environment / STAMP).read_text("utf-8", "replace").split()
    return []


def wanted_stamp(environment: Path, extra: str) -> list[str]:
    """Return the stamp of an up-to-date environment: place and Python, requirements, extra.

    An environment that has the tools for development keeps them, whatever `extra` asks for.
    """

    def digest(*parts: bytes) -> str:
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    requirements = [(ROOT / name).read_bytes() for name in ("pyproject.toml", "requirements.lock")]
    place_and_python = digest(os.fsencode(ROOT), sys.version.encode())
    wanted_extra = DEVELOPMENT if stamp_of(environment)[2:] == [DEVELOPMENT] else extra
    return [place_and_python, digest(*requirements), wanted_extra]


def is_ready(environment: Path, extra: str) -> bool:
    """Return whether nothing is left to install."""
    complete = stamp_of(environment) == wanted_stamp(environment, extra)
    return complete and starts(environment / "bin" / "python", "-P", "-c", IS_COMPLETE)


def make(environment: Path, extra: str) -> None:
    """Make the environment for this Python, or bring it up to date, and write the stamp last.

    The lock serves as constraints: each package must be in it, at its version and with its hash.
    Packages are compiled to bytecode here, once: on a machine that keeps none every process would,
    and the import of torch and its compiler would take three times as long.
    """
    settings, python = environment / "pyvenv.cfg", environment / "bin" / "python"
    if settings.is_file() and "prompt = gallery" not in settings.read_text("utf-8").splitlines():
        raise InputError(
            f"{environment} is there, but was not made by prepare.sh. Move it away.\n"
            "    To install into an environment of your own: pip install -e ."
        )
    uv, stamp, wanted = find_uv(), stamp_of(environment), wanted_stamp(environment, extra)
    # One that has all that is wanted and is not ready is damaged.
    anew = stamp[:1] != wanted[:1] or stamp == wanted or not starts(python, "-c", "")
    (environment / STAMP).unlink(missing_ok=True)
    if anew:
        if environment.is_symlink():
            environment.unlink()
        elif environment.exists():
            detail(f"{environment} is incomplete or of another set-up: making it anew")
            shutil.rmtree(environment)
        venv = [uv, "venv", "--quiet", "--python", sys.executable]
        _install(*venv, "--prompt", "gallery", environment)
    install: list[str | Path] = [uv, "pip", "install", "--python", python]
    extras = ["--all-extras"] if wanted[2] == DEVELOPMENT else []
    packages = ["--compile-bytecode", "--require-hashes", "-r", "pyproject.toml", *extras]
    _install(*install, *packages, "-c", "requirements.lock")
    _install(*install, "--no-deps", "-e", ".")
    if run(*kernel_command(python), quiet=True) != 0:
        raise InputError("the Jupyter kernel could not be registered; the reason is above.")
    (environment / STAMP).write_text(f"{' '.join(wanted)}\n")


def _install(*command: str | Path) -> None:
    """Run a command of an installation; raise InputError when it fails."""
    if run(*command, log=paths.cache_dir() / "installation.txt") != 0:
        raise InputError(
            "the packages could not be installed; the reason is above.\n"
            "    Without network or behind a proxy: set HTTPS_PROXY, or UV_DEFAULT_INDEX for a "
            "package index of your own.\n"
            '    For "invalid peer certificate": UV_SYSTEM_CERTS=1, or SSL_CERT_FILE=FILE.\n'
            "    Run the same command again afterwards: what was downloaded is kept."
        )


def find_uv() -> str:
    """Return the command of uv: that on PATH, or else one that pip gets, as it is configured."""
    os.environ["UV_HTTP_TIMEOUT"] = os.environ.get("UV_HTTP_TIMEOUT") or "180"
    if not os.access(os.environ.get("HOME", ""), os.W_OK):
        os.environ.setdefault("UV_CACHE_DIR", str(paths.cache_dir() / "uv"))
    if starts("uv", "--version"):
        return "uv"
    own = paths.cache_dir() / "uv-tool"
    uv = own / "bin" / "uv"
    if not starts(uv, "--version"):
        detail("getting uv, which installs the packages")
        shutil.rmtree(own, ignore_errors=True)
        pip = own / "bin" / "pip"
        if run(sys.executable, "-m", "venv", own) or run(pip, "install", "-qq", "uv"):
            raise InputError(
                "uv could not be installed; the reason is above.\n"
                "    Without network or behind a proxy: set HTTPS_PROXY, or pip's index-url.\n"
                "    Or install uv yourself, and run this again."
            )
    return str(uv)


def kernel_command(python: Path) -> list[str]:
    """Return the command that registers the kernel "Gallery" in the environment of `python`."""
    command = [str(python), "-m", "ipykernel", "install", "--sys-prefix"]
    command += ["--name", "gallery", "--display-name", "Gallery"]
    # `!python` in a cell is then the notebook's own Python.
    return [*command, "--env", "PATH", f"{python.parent}:${{PATH}}"]


def write_lock() -> int:
    """Write requirements.lock anew from pyproject.toml; return uv's exit code."""
    paths.cache_dir().mkdir(exist_ok=True)
    options = ["--universal", "--generate-hashes", "--python-version", "3.11", "--all-extras"]
    options += ["--no-emit-index-url", "--custom-compile-command", "bash prepare.sh --lock"]
    compiled = ["pip", "compile", "--quiet", *options, "-o", "requirements.lock", "pyproject.toml"]
    return run(find_uv(), *compiled, quiet=True)


# --------------------------------------------------------------------------------------------------
# Commands


def run(*command: str | Path, quiet: bool = False, log: Path | None = None) -> int:
    """Run the command to its end and return its exit code, as a shell gives it.

    It has no standard input, and a session of its own, so that Ctrl-C reaches this process alone.
    An exception here ends the command with all that it has started. `quiet` discards its output;
    with `log`, a file for it, the last line is shown meanwhile, and the last ones after a failure.
    """
    with contextlib.nullcontext() if log is None else log.open("w") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=file or (subprocess.DEVNULL if quiet else None),
            stderr=file,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        return shell_exit_code(process.wait() if log is None else _wait_showing(process, log))
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


def _wait_showing(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait for the process, and show its seconds and the last line of its log."""
    began, is_terminal, screen = time.monotonic(), sys.stdout.isatty(), unescaped(sys.stdout)
    start, end = ("\r\033[K", "") if is_terminal else ("", "\n")
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5 if is_terminal else LINE_SECONDS)
            break
        line = f"      {time.monotonic() - began:.0f} s  {''.join(last_lines(log, 1)).strip()}"
        width = shutil.get_terminal_size().columns - 1 if is_terminal else None
        print(f"{start}{visible(line)[:width]}", end=end, file=screen, flush=True)
    print(start, end="", file=screen, flush=True)
    if process.returncode:
        print(*last_lines(log, 15), sep="\n", file=sys.stderr, flush=True)
    return process.returncode


def last_lines(file: Path, count: int) -> list[str]:
    """Return the last lines of a file."""
    return file.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]


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


def detail(text: str) -> None:
    """Print a line below the title of a step."""
    say(f"      {text}")
