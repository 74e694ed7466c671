"""A task is added with one file and one page: the guide's own example, outside the package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
import torch

from gallery_lib import tasks
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.launcher.job import launch


@pytest.fixture
def task_file(checkout: Path, tmp_path: Path) -> str:
    """Write the example to a file, and return it as `--model` takes it."""
    (source,) = re.findall(
        r"```python\n(.*?)```", (checkout / "docs/guides/add_a_model.md").read_text(), re.DOTALL
    )
    (tmp_path / "mobilenet_v3.py").write_text(source)
    return f"{tmp_path / 'mobilenet_v3.py'}:TASK"


def test_the_example_declares_what_is_true_of_its_model(task_file):
    task = tasks.get(task_file)
    with torch.device("meta"):
        assert sum(p.numel() for p in task.build_model().parameters()) == task.parameters


@pytest.mark.slow
def test_the_example_trains_without_being_registered(task_file, tmp_path):
    sizes = {"batch_size": 4, "image_size": 32, "max_steps": 3, "evaluate": False}
    config = TrainConfig(model=task_file, run_dir=str(tmp_path / "run"), **sizes)
    results = launch(config, LaunchConfig(), show_log=False, progress=False)
    assert results is not None and results.steps == 3 and results.loss["last"] is not None


def test_a_page_is_all_that_its_notebook_takes(task_file, checkout, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("build", checkout / "notebooks" / "build.py")
    assert spec and spec.loader
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    task = tasks.get(task_file)
    monkeypatch.setattr(tasks, "get", {"mobilenet_v3": task}.__getitem__)
    page = tmp_path / "pages" / "mobilenet_v3.md"
    page.parent.mkdir()
    words = ["summary", "minutes", "data", "model", "architecture_text", "why", "exercises"]
    sections = {name: f"{name}." for name in words} | {
        "title": "MobileNetV3",
        "architecture": "notebook.show_source(build_model)",
        "batches": "3",
        "techniques": '"compiler"',
    }
    page.write_text("\n".join(f"# {name}\n{text}\n" for name, text in sections.items()))
    notebook = nbformat.reads(build.render(page), as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert 'notebook.settings("mobilenet_v3")' in text and "# MobileNetV3" in text
    assert "resnet50" not in text
    assert "mobilenet_v3_small(num_classes=1000, dropout=0.0)" in text
    assert "torch.optim.AdamW(parameters, lr=1e-3)" in text
