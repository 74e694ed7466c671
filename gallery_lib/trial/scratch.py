"""The folder in which a script is tried, and the command that is started there.

A script that is run three times for a few steps would write over what it has left before. So it
runs in a copy of the working folder: small files, and files of weights, are copied; folders with
many files and large files are linked, as data to be read. Paths outside the folder are the
reader's own: `--no-scratch` is for a script that needs its own folder.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gallery_lib.errors import InputError, did_you_mean

_LARGE = 2**20
_LARGE_WEIGHTS = 2**30
_MANY = 1_000
_MOST = 20_000
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".pkl", ".h5")
_LEFT_OUT = (".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".cache")


def copy_of(folder: Path, into: Path) -> Path:
    """Copy a folder as the module says, and return the copy."""
    into.mkdir(parents=True)
    for entries, (path, target) in enumerate(_below(folder, into), 1):
        if entries > _MOST:
            raise InputError(
                f"{folder} has more than {_MOST} files and folders, too many to copy. Run the "
                "command in the script's own folder, or with --no-scratch where it may write.",
                parameter="scratch",
            )
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            target.symlink_to(path.resolve())
        elif path.is_dir():
            target.mkdir()
        elif path.stat().st_size <= (_LARGE_WEIGHTS if path.suffix in _WEIGHTS else _LARGE):
            shutil.copy2(path, target)
        else:
            target.symlink_to(path)
    return into


def _below(folder: Path, into: Path) -> Iterator[tuple[Path, Path]]:
    """Yield what is to be copied and where to, folders before what is in them."""
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT:
            (into / path.name).symlink_to(path)
            continue
        target = into / path.name
        if path.is_dir() and not path.is_symlink() and _has_many(path):
            target.symlink_to(path)
            continue
        yield path, target
        if path.is_dir() and not path.is_symlink():
            yield from _below(path, target)


def _has_many(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return sum(1 for _ in zip(range(_MANY + 1), entries, strict=False)) > _MANY


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
        scripts = [path.name for path in Path.cwd().glob("*.py")]
        raise InputError(
            f"there is no command {first}.{did_you_mean(first, scripts)} "
            "A script ends in .py; a command stands behind --.",
            parameter="command",
        )
    if not Path(first).is_file():
        scripts = [path.name for path in Path.cwd().glob("*.py")]
        raise InputError(
            f"{first} does not exist.{did_you_mean(first, scripts)}", parameter="command"
        )
    if first.endswith(".ipynb"):
        raise InputError(
            f"{first} is a notebook. `jupyter nbconvert --to script {first}` makes a script of it.",
            parameter="command",
        )
    return _python(processes) + list(words)


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
    if processes > 1:
        return [*_torchrun(processes), *words[1:]]
    return words


def _python(processes: int) -> list[str]:
    return [sys.executable] if processes == 1 else _torchrun(processes)


def _torchrun(processes: int) -> list[str]:
    run = [sys.executable, "-m", "torch.distributed.run"]
    return [*run, "--standalone", f"--nproc-per-node={processes}"]
