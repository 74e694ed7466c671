"""Where compiled code is kept. Needs neither torch nor time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gallery_lib.errors import RunFailed
from gallery_lib.system.json_files import set_aside
from gallery_lib.system.paths import cache_dir, code_folder

T = TypeVar("T")

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder() -> Path:
    """Return Inductor's cache: the user's own choice, else in the project's cache folder. It need not exist.

    Inductor's command lines for the C++ compiler cannot have spaces: then it is a folder of the same user's without them.
    """
    chosen = Path(os.environ.get(_VARIABLE) or cache_dir() / "inductor")
    if not any(letter.isspace() for letter in str(chosen)):
        return chosen
    name = f"inductor-{hashlib.sha256(os.fsencode(chosen)).hexdigest()[:12]}"
    home = Path.home() / ".cache" / "gallery_lib"
    if not any(letter.isspace() for letter in str(home)):
        return home / name
    return code_folder(Path(tempfile.gettempdir()) / f"gallery_lib-{os.getuid()}") / name


def environment() -> dict[str, str]:
    """Return the variables that keep Inductor's caches there. Raises InputError where others may write into the folder."""
    return {_VARIABLE: str(code_folder(folder()))}


def without_damage(body: Callable[[], T]) -> T:
    """Return what `body` returns, which runs compiled training; once more, with an empty cache, where a damaged file may be to blame.

    The old cache is then kept as NAME.damaged; it comes back where the run fails again, so was not to blame. Whatever is in a cache,
    no run has to fail for it.
    """
    try:
        return body()
    except RunFailed as error:
        if not error.suspects_compiled_code or not folder().is_dir():
            raise
        aside = set_aside(
            folder(), f"{str(error).splitlines()[0]} Compiled code in it may be damaged"
        )
        if aside is None:
            raise
    try:
        return body()
    except RunFailed as error:
        if error.suspects_compiled_code:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder(), ignore_errors=True)
                aside.replace(folder())
        raise


def keep_headers() -> None:
    """Have Inductor keep its precompiled headers in the cache as well.

    It has them in a folder of the machine's temporary one, under a name that everybody knows: who makes that folder first has the
    headers that they put there compiled into everything.
    """
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        from torch._inductor import codecache  # type: ignore[no-redef]
    headers = Path(environment()[_VARIABLE]) / "precompiled_headers"
    codecache._HEADER_DIR = str(headers)  # type: ignore[union-attr]
    codecache._HEADER_LOCK_DIR = str(headers / "locks")  # type: ignore[union-attr]
