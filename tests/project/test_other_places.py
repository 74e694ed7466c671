"""A checkout of root's with another user, and one in a folder with a space and an accent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyter_server_client import jupyter_server
from project.fresh_clone import add_prepared, fresh_clone
from tiny_notebooks import write_notebook

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

NOBODY = 12345
PATH, KERNELS = "/usr/local/bin:/usr/bin:/bin", f"{sys.prefix}/share/jupyter"
TRAIN = ["--max_steps", "8", "--workers", "1", "--threads", "1", "--no-evaluate"]
COMPARE = ["--workers", "0", "--threads", "1", "--rounds", "4", "--block_steps", "2"]


def files_of(folder: Path) -> set[str]:
    """Return all files and folders, but for those that Python itself writes."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and ".venv" not in path.parts
    }


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


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_another_user_works_and_nothing_is_written_into_the_checkout(
    elsewhere: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = elsewhere("of root")
    home = tmp_path / "home"
    home.mkdir()
    notebook = write_notebook(
        home, "one", "from gallery_lib import Config\nprint(Config().compute.bf16)"
    )
    for path in (home, notebook):
        os.chown(path, NOBODY, NOBODY)
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o055)
    before = files_of(folder)

    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    as_nobody += ["env", "-i", f"HOME={home}", f"PATH={PATH}", "PYTHONDONTWRITEBYTECODE=1"]
    as_nobody += [f"JUPYTER_PATH={KERNELS}"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [*as_nobody, *words]
        return subprocess.run(line, cwd=home, capture_output=True, text=True, timeout=500)

    tiny = f"{folder}/tests/helpers/tiny_task.py:TASK"
    done = run("python3", f"{folder}/launch_single_task.py", "--model", tiny, *TRAIN)
    assert done.returncode == 0, done.stderr
    assert (
        f"{folder} is not yours to write in, so runs are kept in {home}/gallery-runs" in done.stderr
    )
    assert list((home / "gallery-runs").glob("*/results.json"))
    gallery = [f"{folder}/.venv/bin/python", "-c", _GALLERY.format(folder=str(folder))]
    done = run(*gallery, "compare", "--model", tiny, *COMPARE)
    assert done.returncode == 0 and "same training" in done.stdout, done.stderr
    done = run(*gallery, "run", str(notebook))
    assert done.returncode == 0, done.stdout + done.stderr
    lab = ["-m", "gallery_lib.notebooks.jupyterlab", str(folder)]
    start = [*as_nobody, f"{folder}/.venv/bin/python", *lab]
    with jupyter_server(start, home / ".local/share/jupyter/runtime") as server:
        opened = server.get("api/contents/my_notebooks/resnet50.ipynb")["content"]
        assert opened["cells"][0]["source"].startswith("# ")
        where = server.outputs_of(
            "my_notebooks/resnet50.ipynb", "import os; print(os.getcwd(), os.geteuid())"
        )
        assert where == f"{home}/gallery/my_notebooks {NOBODY}\n"
        server.save("my_notebooks/resnet50.ipynb", opened)
    assert (home / "gallery" / "my_notebooks" / "resnet50.ipynb").stat().st_uid == NOBODY
    assert files_of(folder) == before


_GALLERY = (
    "import sys; sys.path.insert(0, {folder!r}); from gallery_lib.cli.main import main; "
    "sys.exit(main(sys.argv[1:]))"
)


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
