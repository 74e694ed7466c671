"""What lies around a command: the reader's files, a user without a home, closed streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.system import paths
from gallery_lib.system.processes import PYTHON, search_path, start_supervised

NAMES = ("queue", "random", "types", "typing", "logging", "json", "signal", "struct", "site")


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """Return a folder with files of a reader's that have names of the standard library."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the reader')\n")
    return tmp_path


def test_modules_of_the_working_folder_are_not_imported_below_a_supervisor(shadows: Path) -> None:
    question = "import gallery_lib.launcher.torchrun, queue, random; print('fine')"
    command = [*PYTHON, "-c", question]
    process = start_supervised(
        command, {}, cwd=shadows, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.communicate(timeout=120) == ("fine\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [],
        pytest.param(["--nproc_per_node=2"], marks=pytest.mark.whole_machine),
        ["--workers=1", "--compiler-opt"],
    ],
)
def test_a_run_in_a_folder_with_such_modules_trains(
    shadows: Path, checkout: Path, more: list[str]
) -> None:
    task = checkout / "tests" / "helpers" / "tiny_task.py"
    words = [f"--model={task}:TASK", "--max_steps=2", "--no-evaluate", "--threads=1", *more]
    done = subprocess.run(
        [sys.executable, str(checkout / "launch_single_task.py"), *words],
        cwd=shadows,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GALLERY_RUNS_DIR": str(shadows / "runs")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
@pytest.mark.parametrize("home", [None, "/", "/nonexistent"])
def test_a_user_without_name_and_home_has_folders_for_temporary_use(
    home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GALLERY_CACHE_DIR", raising=False)
    code = "from gallery_lib.system import paths; print(paths.cache_dir(), paths.runs_dir())"
    words = [*("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"), *PYTHON, "-c", code]
    environment = {"PYTHONPATH": search_path(), "PATH": os.defpath}
    environment |= {} if home is None else {"HOME": home}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if paths.checkout() is not None:
        cache, runs = done.stdout.split()
        assert cache.endswith("/gallery-user-54321/.cache/gallery_lib"), done.stderr
        assert runs.endswith("/gallery-user-54321/gallery-runs")


def test_with_standard_error_closed_nothing_of_ours_is_on_standard_output() -> None:
    code = """if True:
        import sys
        sys.stderr = None
        from gallery_lib.checkpoint.script import say
        from gallery_lib.console.progress import Progress, note
        say("one"), note("two"), Progress().show("three")
    """
    done = subprocess.run(
        [*PYTHON, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": search_path()},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from refusal import refused

    from gallery_lib.compiler.backend import check_compiler
    from gallery_lib.config import Compiler

    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with refused("CXX", "CXX=/nonexistent/g++ names none that is there"):
        check_compiler(Compiler(), torch.device("cpu"))
