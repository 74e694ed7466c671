"""An image classifier has an output for each class of its folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusal import refused
from tasks.image_tasks import CLASSES, NAMES
from torch import nn

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.tasks import memory_estimate
from gallery_lib.tasks.domains import classification
from gallery_lib.train.loop import train
from gallery_lib.train.results import Results, read_results


def named(folder: Path, classes: int) -> str:
    """Make a folder of small random images, three of each class to train on and one held out."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 1)):
        for label in range(classes):
            place = folder / split / f"class-{label:04d}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.webp")
    return str(folder)


def trained(data: str, **more: Any) -> Results:
    """Return the results of a step of ResNet-18, unless `more` says otherwise."""
    sizes = {"image_size": 32, "batch_size": 2, "workers": 0, "max_steps": 1}
    return train(TrainConfig(model="resnet18", data_dir=data, **(sizes | more)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [1, 3, 1200])
def test_a_model_has_an_output_for_each_class_of_a_folder(name, classes, tmp_path):
    for label in range(classes):
        (tmp_path / "train" / f"{label:04d}").mkdir(parents=True)
    config = TrainConfig(model=name, data_dir=str(tmp_path))
    task, declared = tasks.of(config), tasks.get(name)
    with torch.device("meta"):
        model, original = task.build_model().eval(), declared.build_model()
        assert model(torch.empty(2, 3, task.image_size, task.image_size)).shape == (2, classes)
    assert task.head is not None and task.head.outputs == classes
    assert sum(p.numel() for p in model.parameters()) == task.parameters
    heads = [
        [m for m in each.modules() if isinstance(m, nn.Linear)][-1] for each in (model, original)
    ]
    # A multiplication and an addition, three times.
    operations = [6 * head.weight.numel() for head in heads]
    assert task.flops_per_sample - declared.flops_per_sample == operations[0] - operations[1]
    usual = memory_estimate.needed_bytes(TrainConfig(model=name))
    more = memory_estimate.needed_bytes(config) - usual
    assert (more > 0) == (classes > 1000)
    assert abs(more) >= abs(3 * 4 * (task.parameters - declared.parameters))


@pytest.mark.parametrize("name", NAMES)
def test_the_mock_data_of_the_gallery_keeps_the_outputs_of_imagenet(name):
    task = tasks.of(TrainConfig(model=name))
    assert task is tasks.get(name) and task.head is not None and task.head.outputs == 1000


def test_a_model_that_was_put_in_place_of_a_task_s_own_stays_as_it_is(folder):
    task = dataclasses.replace(tasks.get("resnet18"), build_model=lambda: nn.Linear(4, 7))
    assert task.with_outputs(CLASSES) is task


def test_a_folder_without_classes_is_refused_before_a_model_is_built(tmp_path):
    with refused("data_dir", tmp_path / "none"):
        tasks.of(TrainConfig(model="resnet18", data_dir=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("outputs", "names"), [(3, ["top1"]), (5, ["top1"]), (6, ["top1", "top5"])]
)
def test_there_is_no_top_five_of_five_classes_or_fewer(outputs, names):
    labels = torch.tensor([0, 1, outputs - 1])  # of six classes, the last is not among five
    counted = classification.metrics(
        lambda images: -torch.arange(float(outputs)).repeat(3, 1),  # type: ignore[arg-type]
        (torch.empty(3, 3, 32, 32), labels),
    )
    hits = {name: (int(hits), count) for name, (hits, count) in counted.items()}
    assert list(hits) == names and hits["top1"] == (1, 3) and hits.get("top5", (2, 3)) == (2, 3)


def test_held_out_labels_are_the_training_data_s_numbers(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.rmtree(copy / "val" / "n00000001")
    held_out = tasks.data_of(
        TrainConfig(model="resnet18", data_dir=str(copy), image_size=32)
    ).held_out
    assert [held_out[index][1] for index in range(4)] == [1, 1, 2, 2]


def weights_of(run_dir):
    (checkpoint,) = (run_dir / "checkpoints").iterdir()
    return torch.load(checkpoint, weights_only=True)["model"]


def test_a_run_says_once_what_its_folder_holds(tmp_path, capsys):
    data = named(tmp_path / "data", classes=3)
    (tmp_path / "data" / "train" / "class-0001" / "notes.txt").write_text("x")
    run_dir = str(tmp_path / "run")
    results = trained(data, batch_size=4, max_steps=2, checkpoint_every="100", run_dir=run_dir)
    said = f"left out of {data}/train: 1 with another ending (class-0001/notes.txt)"
    assert results.data == {
        "train": 9,
        "held_out": 3,
        "notices": [said],
        "classes": 3,
        "outputs": 3,
        "input": "32×32 pixels",
    }
    assert read_results(tmp_path / "run").data == results.data
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("data ")] == [
        "data  classes of the training data: 3; outputs of the model: 3",
        f"data  {said}",
    ]
    weights = weights_of(tmp_path / "run")
    assert weights["fc.weight"].shape == (3, 512)


def test_a_folder_of_one_class_trains_and_is_announced(tmp_path):
    results = trained(named(tmp_path / "data", classes=1), run_dir=str(tmp_path / "run"))
    assert (results.data["classes"], results.data["outputs"]) == (1, 1)
    assert "one class alone" in results.data["notices"][0]
    assert results.loss["curve"] == [[1, 0.0]] and results.metrics["top1"] == 1.0


def test_weights_for_1000_classes_leave_a_folder_s_head_as_drawn(tmp_path):
    data = named(tmp_path / "data", classes=3)
    given = tasks.get("resnet18").build_model().state_dict()
    torch.save({"state_dict": given}, tmp_path / "imagenet.pth")
    start, run_dir = str(tmp_path / "imagenet.pth"), str(tmp_path / "run")
    more = {"evaluate": False, "checkpoint_every": "100", "run_dir": run_dir}
    results = trained(data, pretrained=start, lr=0.0, **more)
    fit = results.started_from
    assert (fit["fitted"], fit["tensors"]) == (120, 122)
    assert list(fit["other_shape"]) == ["fc.weight", "fc.bias"]
    assert fit["missing"] == fit["unexpected"] == []
    weights = weights_of(tmp_path / "run")
    assert torch.equal(weights["layer3.0.conv1.weight"], given["layer3.0.conv1.weight"])
    assert weights["fc.weight"].shape == (3, 512)
