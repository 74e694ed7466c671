"""How JupyterLab starts, and that it leaves the notebooks under git as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_server_client import Server, jupyter_server

from gallery_lib.notebooks import jupyterlab
from gallery_lib.notebooks.jupyterlab import command

CODE = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
OUTPUT = {"output_type": "stream", "name": "stdout", "text": "6\n"}


def notebook(source: str, **values: Any) -> str:
    """Return the text of a notebook of one cell."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": [{**CODE, "source": [source], **values}],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1) + "\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout with two notebooks."""
    folder = tmp_path / "checkout"
    (folder / "notebooks").mkdir(parents=True)
    for name in ("index", "one"):
        (folder / "notebooks" / f"{name}.ipynb").write_text(notebook("print(1)"))
    return folder


def test_jupyterlab_is_for_this_machine_alone_and_opens_at_the_copy_of_the_index(
    root: Path,
) -> None:
    words = command(root)
    assert words[1:5] == ["-P", "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"]
    assert f"--ServerApp.root_dir={root}" in words
    assert "--LabApp.default_url=/lab/tree/my_notebooks" in words
    jupyterlab.refresh(root)
    words = command(root, ["--no-browser"])
    assert "--LabApp.default_url=/lab/tree/my_notebooks/index.ipynb" in words
    assert words.count("--no-browser") == 1
    # JupyterLab makes a token, or takes JUPYTER_TOKEN: everybody can read a command line.
    assert not any("token=" in word for word in words)


def test_a_copy_follows_its_notebook_and_what_was_run_or_edited_is_kept(root: Path) -> None:
    shipped, copy = (root / name / "one.ipynb" for name in ("notebooks", jupyterlab.FOLDER))
    assert jupyterlab.refresh(root) == []
    assert copy.read_bytes() == shipped.read_bytes()
    mine = notebook("print(2 * 3)", outputs=[OUTPUT])
    copy.write_text(mine)
    assert jupyterlab.refresh(root) == []
    assert copy.read_text() == mine  # while its notebook is the same
    shipped.write_text(notebook("print(1)  # better"))
    (said,) = jupyterlab.refresh(root)
    (kept,) = (root / "my_notebooks" / "earlier").glob("one-*.ipynb")
    assert said.endswith(f"changed: your copy of before is {kept.relative_to(root)}.")
    assert (kept.read_text(), copy.read_bytes()) == (mine, shipped.read_bytes())
    shipped.write_text(notebook("print(1)  # still better"))
    assert jupyterlab.refresh(root) == []  # nobody has touched the copy
    assert copy.read_bytes() == shipped.read_bytes()


def test_copies_lie_at_the_depth_of_the_notebooks_and_git_ignores_them(checkout: Path) -> None:
    assert Path(jupyterlab.FOLDER).name == jupyterlab.FOLDER  # so that links hold
    assert f"/{jupyterlab.FOLDER}/" in (checkout / ".gitignore").read_text().splitlines()


OPEN = """
c.IdentityProvider.token = c.ServerApp.token = ""
c.ServerApp.identity_provider_class = "jupyter_server.auth.identity.IdentityProvider"
c.ServerApp.ip, c.ServerApp.allow_remote_access = "0.0.0.0", True
"""
"""A user's configuration of Jupyter for servers that are protected otherwise."""


@pytest.fixture
def server(root: Path, checkout: Path, tmp_path: Path) -> Iterator[Server]:
    """Yield a JupyterLab, started as `prepare.sh --lab` does."""
    runtime = tmp_path / "runtime"
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    own = {name: str(tmp_path / name) for name in (*folders, "IPYTHONDIR")}
    for name in ("jupyter_server_config.py", "jupyter_lab_config.py"):
        Path(own["JUPYTER_CONFIG_DIR"]).mkdir(exist_ok=True)
        Path(own["JUPYTER_CONFIG_DIR"], name).write_text(OPEN)
    words = [
        sys.executable,
        "-m",
        "gallery_lib.system.supervisor",
        str(os.getpid()),
        sys.executable,
        "-m",
        "gallery_lib.notebooks.jupyterlab",
        str(root),
        "--no-browser",
    ]
    env = {**os.environ, **own, "JUPYTER_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(checkout)}
    with jupyter_server(words, runtime, env=env) as running:
        yield running


@pytest.mark.slow
def test_a_notebook_that_jupyterlab_opens_runs_and_saves_leaves_what_git_tracks_unchanged(
    root: Path, server: Server
) -> None:
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "notebooks"], check=True)
    opened = server.get("").partition("/lab/tree/")[2].partition("?")[0]
    # Other notebooks are chosen from the folder of this one.
    assert opened == "my_notebooks/index.ipynb"
    model = server.get("api/contents/my_notebooks/one.ipynb?content=1")
    outputs = [{**OUTPUT, "text": ["6\n"]}]
    model["content"]["cells"][0] |= {"execution_count": 1, "outputs": outputs}
    server.save("my_notebooks/one.ipynb", model["content"])
    saved = json.loads((root / "my_notebooks" / "one.ipynb").read_text())
    assert saved["cells"][0]["execution_count"] == 1
    diff = ["git", "-C", str(root), "diff", "--name-only"]
    assert subprocess.run(diff, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.slow
def test_no_configuration_of_the_users_opens_the_server(server: Server) -> None:
    address = f"{server.url}api/contents"
    assert address.startswith("http://127.0.0.1:")
    of_another_host = urllib.request.Request(
        f"{address}?token={server.token}", headers={"Host": "else.where"}
    )
    for asked in (address, of_another_host):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked, timeout=30)
