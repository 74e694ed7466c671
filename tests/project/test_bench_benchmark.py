"""benchmarks/bench.py: its arguments for `gallery bench`, and where it puts the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gallery_lib.config import TrainConfig
from gallery_lib.errors import OutOfMemory, RunFailed


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


def test_memory_alone_ends_the_search_for_the_largest_batch(
    benchmark_module: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tried = benchmark_module("bench"), []

    def train(batch_size: int, steps: int, folder: Path) -> Any:
        tried.append((batch_size, steps))
        if batch_size > 1000:
            raise error
        return SimpleNamespace(
            samples_per_second={}, step_seconds={}, peak_memory_bytes={}, startup_seconds={}
        )

    monkeypatch.setattr(module, "train_resnet50", train)
    error: Exception = OutOfMemory("the run in a folder: the memory of the GPU ran out.")
    found = module.largest_batch(tmp_path)
    assert found["batch_size"] == 512 and "memory of the GPU" in found["twice_as_many"]
    assert tried == [(256, 3), (512, 3), (1024, 3), (512, 60)]
    error = RunFailed("the loss became NaN")
    with pytest.raises(RunFailed, match="NaN"):
        module.largest_batch(tmp_path)


def test_images_are_repeated_so_that_a_batch_may_be_larger_than_the_folder(
    benchmark_module: Callable[[str], Any],
) -> None:
    task = benchmark_module("repeated_images").TASK
    train = task.data(TrainConfig(model="resnet50", image_size=32, seed=0)).train
    folder = len(train.images)
    assert len(train) == 2**17 > folder
    for index in (0, folder - 1, 5 * folder + 3):
        image, label = train[index]
        again, label_again = train.images[index % folder]
        assert label == label_again and (image == again).all()
    assert train.collate([train[0], train[folder]])[0].shape == (2, 32, 32, 3)


def test_the_loader_is_measured_with_as_many_workers_as_a_gpu_needs(
    benchmark_module: Callable[[str], Any],
) -> None:
    assert benchmark_module("loader").worker_counts(2) == [1, 2]
    assert benchmark_module("loader").worker_counts(16) == [1, 2, 4, 8, 16]
    assert benchmark_module("loader").worker_counts(12) == [1, 2, 4, 8, 12]
