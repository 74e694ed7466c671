"""What a workspace is given before a command starts: damaged, foreign and odd files."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .commands import compare, train
from .workspace import ROOT, Workspace, started


def fifo_among_images(workspace: Workspace) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for name in ("one", "two"):
            (workspace.folder / "images" / split / name).mkdir(parents=True)
            Image.new("RGB", (64, 64)).save(workspace.folder / "images" / split / name / "0.jpg")
    os.mkfifo(workspace.folder / "images" / "train" / "one" / "1.jpg")


def fifo_as_manifest(workspace: Workspace) -> None:
    for split in ("train", "val"):
        (workspace.folder / "features" / split).mkdir(parents=True)
        os.mkfifo(workspace.folder / "features" / split / "manifest.tsv")


def damaged_text(workspace: Workspace) -> None:
    shutil.copytree(ROOT / ".cache" / "data" / "english", workspace.folder / "data")
    file = next((workspace.folder / "data").rglob("train.npy"))
    file.write_bytes(file.read_bytes()[:-100] + b"x" * 100)


def own_cache(workspace: Workspace) -> None:
    """Give the workspace a cache of its own, with what a compiled run and a comparison keep."""
    made = Path(tempfile.gettempdir()) / f"faults-cache-{os.getpid()}"
    if not made.exists():
        (made / "data").mkdir(parents=True)
        for number, words in enumerate((train("SLOW", "--compiler-opt", steps=6), compare())):
            earlier = Workspace(workspace.folder / f"before-{number}", made)
            earlier.folder.mkdir()
            with started(words(earlier), earlier) as command:
                command.ended_after(300)
    shutil.copytree(made, workspace.folder / "cache", symlinks=True)
    workspace.cache = workspace.folder / "cache"


def damaged_library(workspace: Workspace) -> None:
    own_cache(workspace)
    for file in (workspace.cache / "cpu_kernels").glob("*.so"):
        os.truncate(file, file.stat().st_size // 2)


def damaged_reference(workspace: Workspace) -> None:
    own_cache(workspace)
    for file in (workspace.cache / "references").glob("*.pt"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def damaged_inductor(workspace: Workspace) -> None:
    """Empty or overwrite every file of the compiler's cache."""
    own_cache(workspace)
    for number, file in enumerate(
        sorted(path for path in (workspace.cache / "inductor").rglob("*") if path.is_file())
    ):
        file.write_bytes(b"" if number % 2 else os.urandom(200))


def open_to_others(workspace: Workspace) -> None:
    own_cache(workspace)
    (workspace.cache / "inductor").mkdir(exist_ok=True)
    (workspace.cache / "inductor").chmod(0o777)


def foreign_run_dir(workspace: Workspace) -> None:
    (workspace.folder / "run").mkdir()
    (workspace.folder / "run" / "thesis.tex").write_text("precious")


def file_as_run_dir(workspace: Workspace) -> None:
    (workspace.folder / "run").write_text("precious")


def bad_task(text: str) -> object | None:
    def prepare(workspace: Workspace) -> None:
        (workspace.folder / "task.py").write_text(text)

    return prepare


def jumping_clock(workspace: Workspace) -> None:
    """Preload a library that sets the wall clock back by a day, once the file `jump` is there."""
    source = workspace.folder / "clock.c"
    source.write_text(_CLOCK)
    library = workspace.folder / "clock.so"
    os.system(f"gcc -shared -fPIC -O1 -o '{library}' '{source}' -ldl")
    workspace.environment |= {
        "LD_PRELOAD": str(library),
        "CLOCK_JUMP_FILE": str(workspace.folder / "jump"),
    }


_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, t);
    const char *file = getenv("CLOCK_JUMP_FILE");
    if (id == CLOCK_REALTIME && file && access(file, F_OK) == 0) t->tv_sec -= 86400;
    return code;
}
"""
