"""The folder in which a script is tried, and the command that is started there.

A script that is run some times for a few steps would write over what it has left before. So each
run has a copy of the working folder. Small files are copied; large ones, folders with many files
and what lies beside the folder are links, to be read. `protect`, in the script's processes, puts a
file of the run's own in the place of a link before Python writes to it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError, did_you_mean

_LARGE = 2**20
_MANY = 1_000
_MOST = 20_000
_LEVELS = 3
"""Folders above the working folder whose entries the script finds beside its copy."""
_NATIVE = (
    *(".safetensors", ".h5", ".hdf5", ".onnx", ".db", ".sqlite", ".sqlite3", ".lmdb", ".parquet"),
    *(".arrow", ".mp4", ".avi", ".webm"),
)
"""Files that other code than Python writes to: they are copied, whatever their size."""
_LARGEST_COPY = 2**32
_LEFT_OUT = (".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".cache")
_OPENED = {"open": (0,), "sqlite3.connect": (0,), "os.truncate": (0,), "shutil.rmtree": (0,)}
_CHANGED = {"os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,)}
"""Events of `sys.addaudithook` that change a file, or an entry of a folder, and their paths."""


def copy_of(folder: Path, into: Path) -> Path:
    """Make a copy of `folder` below `into`, with links to what lies beside it; return the copy."""
    if not folder.name:
        raise InputError(
            f"{folder} cannot be copied. Run the command in the script's folder.",
            parameter="scratch",
        )
    above = folder.parents[: min(_LEVELS, len(folder.parents) - 1)]
    copy = into.joinpath(*folder.parts[len(folder.parts) - len(above) - 1 :])
    copy.mkdir(parents=True)
    size = 0
    for entries, (path, target) in enumerate(_below(folder, copy), 1):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            target.symlink_to(path.resolve())
        elif path.is_dir():
            target.mkdir()
        elif (length := path.stat().st_size) <= _LARGE or path.suffix in _NATIVE:
            shutil.copy2(path, target)
            size += length
        else:
            target.symlink_to(path)
        if entries > _MOST or size > _LARGEST_COPY:
            raise InputError(
                f"{folder} is too large to copy: more than {_MOST} files and folders, or 4 GiB. "
                "Run the command in the script's folder, or with --no-scratch where it may write.",
                parameter="scratch",
            )
    original, beside = folder, copy
    for parent in above:
        with contextlib.suppress(OSError):  # of a folder that others may not list
            for entry in itertools.islice(parent.iterdir(), _MANY):
                if entry != original:
                    (beside.parent / entry.name).symlink_to(entry)
        original, beside = parent, beside.parent
    return copy


def _below(folder: Path, into: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what is to be copied and where to, folders before what is in them."""
    for path in sorted(folder.iterdir()):
        target = into / path.name
        linked = path.name in _LEFT_OUT or (path.is_dir() and _has_many(path))
        if linked and not path.is_symlink():
            target.symlink_to(path)
            continue
        yield path, target
        if path.is_dir() and not path.is_symlink():
            yield from _below(path, target)


def _has_many(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return sum(1 for _ in zip(range(_MANY + 1), entries, strict=False)) > _MANY
    except OSError:
        return True  # what cannot be read is not copied


def protect(root: str) -> None:
    """Have this process write to files of its own, where those below `root` are links."""

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not _writes(arguments):
            return
        for place in (*_OPENED.get(event, ()), *_CHANGED.get(event, ())):
            if isinstance(arguments[place], str | bytes | os.PathLike):
                make_own(os.fsdecode(arguments[place]), root, whole=event in _OPENED)

    sys.addaudithook(before)


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def make_own(path: str, root: str, *, whole: bool) -> None:
    """Put folders and, with `whole`, a copy of the file in the place of links on the way to it."""
    full = os.path.abspath(path)  # noqa: PTH100  links stay as they are
    if not full.startswith(root + os.sep):
        return
    place, names = root, full[len(root) + 1 :].split(os.sep)  # noqa: PTH206
    for number, name in enumerate(names):
        place = f"{place}{os.sep}{name}"
        is_last = number == len(names) - 1
        if not os.path.islink(place) or (is_last and not whole):  # noqa: PTH114
            continue
        target = os.path.realpath(place)
        new = f"{place}.own-{os.getpid()}-{threading.get_ident()}"
        if os.path.isdir(target):  # noqa: PTH112
            os.mkdir(new)  # noqa: PTH102
            for entry in os.listdir(target):  # noqa: PTH208
                os.symlink(f"{target}{os.sep}{entry}", f"{new}{os.sep}{entry}")  # noqa: PTH211
            try:
                os.unlink(place)  # noqa: PTH108
            except OSError:  # another process has been faster
                shutil.rmtree(new)
                continue
        elif os.path.exists(target):  # noqa: PTH110
            shutil.copy2(target, new)
        else:
            os.unlink(place)  # noqa: PTH108
            continue
        os.replace(new, place)  # noqa: PTH105


def started(words: Sequence[str], processes: int) -> list[str]:
    """Return the command to start: a script is run by this Python, over torchrun where asked.

    Raises:
        InputError: for no command, a script that is not there, or several processes of a command
            that starts its own.
    """
    if not words:
        raise InputError("gallery try takes a script: gallery try train.py …", parameter="command")
    first = words[0]
    if not first.endswith((".py", ".ipynb")):
        if shutil.which(first, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"):
            return _of_other_command(list(words), processes)
        raise InputError(
            f"there is no command {first}.{did_you_mean(first, _scripts())} "
            "A script ends in .py; a command stands behind --.",
            parameter="command",
        )
    if not Path(first).is_file():
        raise InputError(
            f"{first} does not exist.{did_you_mean(first, _scripts())}", parameter="command"
        )
    if first.endswith(".ipynb"):
        raise InputError(
            f"{first} is a notebook. `jupyter nbconvert --to script {first}` makes a script of it.",
            parameter="command",
        )
    if Path(first).is_relative_to(Path.cwd()):  # an absolute path: the copy is meant
        first = str(Path(first).relative_to(Path.cwd()))
    return [*_python(processes), first, *words[1:]]


def _scripts() -> list[str]:
    return [path.name for path in Path.cwd().glob("*.py")]


def name_of(words: Sequence[str]) -> str:
    """Return the script's name among the words of a command; else the command's."""
    scripts = [Path(word).name for word in words if word.endswith(".py")]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    return next(iter([*scripts, *modules[-1:], Path(words[0]).name]))


def _of_other_command(words: list[str], processes: int) -> list[str]:
    is_python = Path(words[0]).name.startswith("python")
    if processes > 1 and not is_python:
        raise InputError(
            f"--nproc={processes} starts Python scripts; {words[0]} starts its own processes. "
            "Leave --nproc away.",
            parameter="nproc",
        )
    return [*_python(processes), *words[1:]] if processes > 1 else words


def _python(processes: int) -> list[str]:
    if processes == 1:
        return [sys.executable]
    run = [sys.executable, "-m", "torch.distributed.run"]
    return [*run, "--standalone", f"--nproc-per-node={processes}"]


_PORTS = ("--master-port", "--master_port", "--main-process-port", "--main_process_port")
_FIRST_PORT = 29_500


def at_own_port(words: Sequence[str], number: int) -> list[str]:
    """Return the command with a port of its own where a launcher has one: runs would collide."""
    moved = 7 * number
    own, launcher = list(words), Path(words[0]).name
    for place, word in enumerate(own):
        name, given, value = word.partition("=")
        if name in _PORTS and (value if given else own[place + 1]).isdigit():
            at = place if given else place + 1
            port = int(value if given else own[at]) + moved
            own[at] = f"{name}={port}" if given else str(port)
            return own
    if launcher == "torchrun" and not {"--standalone", "--rdzv-endpoint"} & {*own}:
        own[1:1] = [f"--master-port={_FIRST_PORT + moved}"]
    if launcher == "accelerate" and own[1:2] == ["launch"]:
        own[2:2] = ["--main_process_port", str(_FIRST_PORT + moved)]
    return own
