"""A checkout in a folder with a space and an accent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from project.fresh_clone import add_prepared, fresh_clone
from tiny_notebooks import write_notebook

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

PATH, KERNELS = "/usr/local/bin:/usr/bin:/bin", f"{sys.prefix}/share/jupyter"
TRAIN = ["--max_steps", "8", "--workers", "1", "--threads", "1", "--no-evaluate"]
COMPARE = ["--workers", "0", "--threads", "1", "--rounds", "4", "--block_steps", "2"]


@pytest.fixture
def elsewhere(tmp_path: Path, checkout: Path) -> Callable[[str], Path]:
    """Return a clone below a folder of that name, with an environment.

    It has the data of this checkout.
    """

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        clone = fresh_clone(checkout, tmp_path / name)
        add_prepared(clone.root)
        return clone.root

    return make


def test_a_folder_with_a_space_and_an_accent_works(
    elsewhere: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, task = elsewhere("mes modèles à moi"), "tests/helpers/tiny_task.py:TASK"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {"HOME": str(tmp_path), "PATH": PATH, "JUPYTER_PATH": KERNELS}
        line = ["python3", *words]
        return subprocess.run(
            line, cwd=folder, capture_output=True, text=True, timeout=500, env=variables
        )

    done = run("launch_single_task.py", "--model", task, "--compiler-opt", *TRAIN)
    assert done.returncode == 0, done.stderr
    done = run("-m", "gallery_lib", "compare", "--model", task, *COMPARE)
    assert done.returncode == 0 and "same training" in done.stdout, done.stderr
    write_notebook(folder / "mine", "one", "print(1)")
    done = run("-m", "gallery_lib", "run", "mine/one.ipynb")
    assert done.returncode == 0, done.stdout + done.stderr
