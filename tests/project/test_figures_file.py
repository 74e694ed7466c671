"""A file for figures that cannot be written is refused before anything is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusal import check_refused_command, refused


def test_a_folder_is_made_and_figures_are_written(
    benchmark_module: Callable[[str], Any], tmp_path: Path
) -> None:
    file = tmp_path / "new" / "figures.json"
    benchmark_module("figures_file").write_result(file, {"ratio": 1.5})
    assert json.loads(file.read_text()) == {"ratio": 1.5}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is a folder"),
        ("taken/figures.json", "its folder cannot be made: "),
        ("taken/x/y.json", "cannot be made"),
    ],
)
def test_what_cannot_be_written_is_refused(
    benchmark_module: Callable[[str], Any], tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    with refused("out", tmp_path, reason, "--out"):
        benchmark_module("figures_file").writable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("startup.py", "--out"), ("ddp_lab.py", "validate", "--out")],
    ids=lambda words: words[0],
)
def test_a_command_says_so_before_it_measures(
    checkout: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    script, *options = words
    done = subprocess.run(
        [sys.executable, str(checkout / "benchmarks" / script), *options, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    check_refused_command(done.returncode, done.stderr.splitlines()[-1], tmp_path, "--out")
    assert done.stdout == "" and "Traceback" not in done.stderr
