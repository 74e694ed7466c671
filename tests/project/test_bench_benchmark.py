"""benchmarks/bench.py: its arguments for `gallery bench`, and where it puts the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["a-machine", "--only", "resnet18", "--variants=best,ours", "--resume"], "bench-small"),
        (["a-machine", "--profile", "large", "--rounds", "4"], "bench-large"),
    ],
)
def test_options_are_passed_on_and_each_size_of_input_has_files_of_its_own(
    words: list[str],
    name: str,
    benchmark_module: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, asked = benchmark_module("bench"), []

    def gallery(arguments: list[str]) -> int:
        asked[:] = arguments
        folder = Path(
            next(word for word in arguments if word.startswith("--out=")).removeprefix("--out=")
        )
        folder.mkdir(parents=True)
        for ending in ("json", "png"):
            (folder / f"bench.{ending}").write_text(ending)
        return 0

    monkeypatch.setenv("GALLERY_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(
        module, "results_file", lambda machine, file: tmp_path / "results" / machine / file
    )
    monkeypatch.setattr(module.pages, "write", lambda: asked.append("pages written"))
    monkeypatch.setattr(module, "gallery", gallery)
    monkeypatch.setattr(module.hardware, "gpu_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["bench.py", *words])
    assert module.main() == 0
    assert all(
        word in asked for word in words if word not in ("a-machine", "--only", "--profile", "large")
    )
    assert f"--profile={'large' if 'large' in words else 'auto'}" in asked
    assert sorted(path.name for path in (tmp_path / "results" / "a-machine").iterdir()) == [
        f"{name}.json",
        f"{name}.png",
    ]
    assert asked[-1] == "pages written"
