"""Folder of compiled code, and recovery from damage in it.

The import needs neither torch nor time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gallery_lib.errors import RunFailed
from gallery_lib.system.paths import cache_dir, code_folder
from gallery_lib.system.processes import tell

T = TypeVar("T")

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder() -> Path:
    """Return Inductor's cache folder: the user's own choice, else one in the project's cache.

    The folder need not exist. An import of torch's compiler sets the variable to a folder for
    temporary files, under a name that everybody knows: nobody's choice. Inductor's command lines
    for the C++ compiler cannot have spaces. For a path with spaces the result is another folder of
    the same user, without them.
    """
    path = Path(os.environ.get(_VARIABLE) or cache_dir() / "inductor")
    if path.parent == Path(tempfile.gettempdir()) and path.name.startswith("torchinductor_"):
        path = cache_dir() / "inductor"
    if not any(letter.isspace() for letter in str(path)):
        return path
    name = f"inductor-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    own = Path.home() / ".cache" / "gallery_lib"
    if not any(letter.isspace() for letter in str(own)):
        return own / name
    return code_folder(Path(tempfile.gettempdir()) / f"gallery_lib-{os.getuid()}") / name


def cache_variables() -> dict[str, str]:
    """Return the environment variables that keep Inductor's caches in `folder()`.

    Raises:
        InputError: where others may write into the folder.
    """
    return {_VARIABLE: str(code_folder(folder()))}


def without_damage(body: Callable[[], T]) -> T:
    """Return what `body` returns, which runs compiled training; retry once with an empty cache.

    The retry happens where a damaged file in the cache may be to blame for a failure. The old cache
    is then kept as NAME.damaged.
    """
    try:
        return body()
    except RunFailed as error:
        if not error.suspects_compiled_code or not folder().is_dir():
            raise
        aside = folder().with_name(f"{folder().name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        folder().replace(aside)
        why = f"{str(error).splitlines()[0]} Compiled code in it may be damaged"
        tell(f"{folder()} was set aside as {aside.name}, and is made anew: {why}")
    return body()


def keep_headers() -> None:
    """Make Inductor keep its precompiled headers in the cache as well.

    By default they lie in the machine's temporary folder, under a name that everybody knows.
    Whoever creates that folder first has headers of theirs compiled into everything.
    """
    from torch._inductor import codecache

    headers = Path(cache_variables()[_VARIABLE]) / "precompiled_headers"
    codecache._HEADER_DIR = str(headers)  # type: ignore[union-attr]
    codecache._HEADER_LOCK_DIR = str(headers / "locks")  # type: ignore[union-attr]
