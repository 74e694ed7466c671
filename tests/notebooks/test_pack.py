"""A packed task runs by itself elsewhere; its archive holds no surprising names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest
from light_environment import link_packages
from refusal import check_refused_command

from gallery_lib import tasks
from gallery_lib.cli.main import main
from gallery_lib.notebooks.pack import pack


@pytest.mark.parametrize("name", ["resnet50", "tts_angular"])
def test_an_archive_has_the_task_its_data_commands_and_nothing_of_other_notebooks(
    name: str, tmp_path: Path
) -> None:
    with tarfile.open(pack(name, tmp_path / "out.tar.gz")) as archive:
        names = archive.getnames()
    folder = f"gallery-{name}/"
    assert all(entry.startswith(folder) and ".." not in Path(entry).parts for entry in names)
    assert [entry for entry in names if entry.endswith(".ipynb")] == [
        f"{folder}notebooks/{name}.ipynb"
    ]
    assert not any(entry.endswith(".pyc") for entry in names)
    commands = {Path(entry).stem for entry in names if entry.startswith(f"{folder}data_prep/")}
    assert commands == set(tasks.get(name).data_commands) != set()
    for file in ("prepare.sh", "launch_single_task.py", "README.md", "gallery_lib/train/loop.py"):
        assert f"{folder}{file}" in names


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["resnet5"], ["'resnet5'", "`resnet50`"]),
        (["resnet50", "--out", "/nowhere/x.tar.gz"], ["--out", "/nowhere does not exist"]),
        ([], ["TASK", "gallery pack --help"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused_command(main(["pack", *words]), capsys.readouterr().err, *values)


@pytest.mark.slow
def test_an_unpacked_archive_trains_by_its_readme_in_a_fresh_environment(tmp_path: Path) -> None:
    with tarfile.open(pack("alexnet", tmp_path / "out.tar.gz")) as archive:
        # Python has the filter since 3.11.4.
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path / "elsewhere", **safe)
    here = tmp_path / "elsewhere" / "gallery-alexnet"
    venv.create(tmp_path / "fresh", symlinks=True)
    (packages,) = tmp_path.glob("fresh/lib/python*/site-packages")
    names = link_packages(packages, here / "pyproject.toml", "tasks")
    assert "torchvision" in names and not {"gallery-lib", "jupyterlab", "pytest"} & names
    environment = {"PATH": f"{tmp_path}/fresh/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    readme = (here / "README.md").read_text()
    (train,) = re.findall("^ +(python3 launch_single_task.py .*)$", readme, re.MULTILINE)
    for line in (
        "python3 data_prep/mock_imagenet.py --classes 2 --train-per-class 8 --val-per-class 2",
        f"{train} --batch_size=4 --image_size=64 --max_steps=2",
    ):
        subprocess.run(line.split(), cwd=here, env=environment, check=True, timeout=580)
    (results,) = here.glob("runs/*/results.json")
    written = json.loads(results.read_text())
    assert written["task"] == "alexnet" and written["steps"] == 2
    assert written["techniques"]["compiler"].startswith("inductor")
