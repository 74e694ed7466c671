"""Compiled code in one file, for another machine of the same kind: `save(file)`, `load(file)`.

A bundle has everything compiled so far: Inductor's and AOTAutograd's entries and our own C++, each
file with its SHA-256 digest. It holds machine code and pickles, so load bundles that you trust.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import torch

from gallery_lib.compiler import cache
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.system import files, hardware

_CONTENTS = "bundle.json"
_OWN_CODE = "cpu_kernels"
_DAMAGED = (EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What zipfile raises for an archive that is cut, changed, encrypted or of another kind."""


def _folders() -> dict[str, Path]:
    """Return the folders of compiled code by their names in a bundle."""
    cache.cache_variables()  # refuses a folder that others may write into
    return {"inductor": cache.folder(), _OWN_CODE: kept_code.folder(_OWN_CODE)}


def _machine() -> dict[str, str]:
    """Return what compiled code depends on, with a name for each that a message can show."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "processor": f"{platform.machine()}, {' '.join(sorted(hardware.cpu_flags()))}",
        "GPU": gpu,
    }


def save(file: Path) -> tuple[int, int]:
    """Write all compiled code of this cache into `file`; return the files and bytes in it.

    Raises:
        InputError: where nothing was compiled yet, or the file's folder does not exist.
        OSError: where the file cannot be written.
    """
    if not file.absolute().parent.is_dir():
        raise InputError(f"the folder {file.parent} does not exist.", parameter="file")
    kept = {
        f"{name}/{path.relative_to(folder)}": path
        for name, folder in _folders().items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix not in (".lock", ".tmp")
    }
    if not kept:
        raise InputError(
            "nothing was compiled yet. Train once with the accelerated backend, then save.",
            parameter="file",
        )
    contents = {
        "machine": _machine(),
        "folder": str(cache.folder()),
        "digests": {name: _digest(path) for name, path in kept.items()},
    }
    with (
        files.atomic_write(file, "wb") as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        archive.writestr(_CONTENTS, json.dumps(contents))
        for name, path in kept.items():
            archive.write(path, name)
    return len(kept), sum(path.stat().st_size for path in kept.values())


def load(file: Path) -> tuple[int, bool]:
    """Put the code of a bundle into this cache; files that are there already stay.

    Returns:
        How many files were new; and whether the cache lies where the bundle's did. C++ is compiled
        again where it does not, since the path of a header is in its key.

    Raises:
        InputError: for a bundle of another machine, a damaged or missing one, or another kind of
            file. Nothing is changed then.
    """
    if not file.is_file():
        raise InputError(f"{file} does not exist, or is no file.", parameter="file")
    folders = _folders()
    folder = folders["inductor"]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="bundle-") as unpacked:
        contents = _unpack(file, Path(unpacked))
        theirs, here = contents["machine"], _machine()
        if differing := [name for name in here if theirs.get(name) != here[name]]:
            name = differing[0]
            raise InputError(
                f"{file} was compiled with {name} {_short(theirs.get(name), here[name])}; here it "
                f"is {_short(here[name], theirs.get(name))}. Compile on this machine instead.",
                parameter="file",
            )
        new = 0
        for name in contents["digests"]:
            room, _, inside = name.partition("/")
            target = folders[room] / inside
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.move(Path(unpacked, name), target)
                new += 1
        return new, contents.get("folder") == str(folder)


def _unpack(file: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Unpack what a bundle says it holds, checked by its digests; return its contents."""
    try:
        with zipfile.ZipFile(file) as archive:
            contents: dict[str, dict[str, str]] = json.loads(archive.read(_CONTENTS))
            dict.items(contents["machine"])  # TypeError for another type
            for name, digest in contents["digests"].items():
                room, *inside = PurePosixPath(name).parts
                plain = name == str(PurePosixPath(name))
                if not plain or room not in _folders() or not inside or ".." in inside:
                    raise ValueError(f"{name} lies outside the cache")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                if _digest(target) != digest:
                    raise ValueError(f"{name} is not what was saved")
    except (LookupError, TypeError, ValueError, AttributeError, *_DAMAGED) as error:
        raise InputError(
            f"{file} is no bundle of `gallery cache save`, or it is damaged ({error}). Nothing was "
            "loaded.",
            parameter="file",
        ) from error
    return contents


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _short(value: str | None, other: str | None) -> str:
    """Return a value, of a processor only the flags that the other lacks."""
    own, rest = set(str(value).split()), set(str(other).split())
    return (
        f"with {' '.join(sorted(own - rest)[:4]) or 'fewer flags'}" if len(own) > 9 else str(value)
    )
