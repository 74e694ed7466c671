"""The three commands that prepare.sh prints at its end, as the caller's shell needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gallery_lib.cli.next_steps import commands


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout in a folder with a space."""
    root = tmp_path / "check out"
    (root / "notebooks").mkdir(parents=True)
    for name in ("index", "resnet50", "hf_Bert"):
        (root / "notebooks" / f"{name}.ipynb").touch()
    return root


@pytest.fixture
def python(root: Path) -> Path:
    return root / ".venv" / "bin" / "python"


def test_in_the_checkout_they_are_short(root: Path, python: Path) -> None:
    assert commands(root, root, python) == [
        "bash prepare.sh --lab",
        (
            ".venv/bin/python launch_single_task.py --model resnet50 --batch_size 16 "
            "--image_size 64 --compiler-opt"
        ),
        ".venv/bin/gallery compare --model resnet50 --batch_size 16 --image_size 64",
    ]


def test_from_elsewhere_they_have_the_path_quoted(root: Path, python: Path, tmp_path: Path) -> None:
    lab, train, compare = commands(root, tmp_path, python)
    assert lab == f"bash '{root}/prepare.sh' --lab"
    assert train.startswith(f"'{root}/.venv/bin/python' '{root}/launch_single_task.py' --model")
    assert compare.startswith(f"'{root}/.venv/bin/gallery' compare")


def test_they_are_of_the_notebook_that_was_run_and_of_another_environment(root: Path) -> None:
    words = ["rounds", "4", "batch_size", "2"]
    _, train, compare = commands(root, root, Path("/opt/env/bin/python"), "hf_Bert", words)
    assert train.startswith(
        "/opt/env/bin/python launch_single_task.py --model hf_Bert --batch_size 2"
    )
    assert compare.startswith("/opt/env/bin/gallery compare --model hf_Bert")


def test_a_packed_task_is_the_one_that_is_there(root: Path, python: Path) -> None:
    for name in ("index", "resnet50"):
        (root / "notebooks" / f"{name}.ipynb").unlink()
    assert "--model hf_Bert --batch_size 4 --sequence_length 32" in commands(root, root, python)[1]
