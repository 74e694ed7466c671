"""Image classifiers: initial weights, images, an output for each class of a folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusal import refused
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.mock_imagenet import MockSpec, generate
from gallery_lib.tasks import memory_estimate
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import BRANCH_SCALE
from gallery_lib.tasks.task import Splits
from gallery_lib.train.loop import train
from gallery_lib.train.results import Results, read_results
from gallery_lib.tune.choice import without_dropout

NAMES = ("alexnet", "resnet18", "resnet50", "timm_vision_transformer", "timm_vovnet", "vgg16")
CLASSES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a small mock ImageNet, which must not be changed."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generate(root, MockSpec(classes=CLASSES, train_per_class=6, val_per_class=2), progress=False)
    return str(root)


WORDS = ("red discs, striped across", "orange triangles, finely striped across",
         "lime squares, striped down")  # fmt: skip


@pytest.fixture(scope="module")
def splits(folder: str) -> Splits:
    """Return the mock ImageNet as the tasks load it, 32 pixels wide."""
    return tasks.data_of(TrainConfig(model="resnet18", data_dir=folder, image_size=32))


def test_the_examples_are_augmented_training_images_of_every_class(splits):
    shown = classification.examples(splits, count=9)
    assert len(shown.images) == len(shown.captions) == 9
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in shown.images)
    assert shown.captions == [name.replace(", ", ",\n") for name in WORDS for _ in range(3)]
    assert "9 of 18 training images, augmented, 32×32, of 3 classes" in shown.description
    assert all(
        np.array_equal(image, splits.train[2 * i][0].numpy())
        for i, image in enumerate(shown.images)
    )
    assert classification.chance(splits) == {"top1": 1 / CLASSES}


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("alexnet", 62, "at least 63"), ("timm_vision_transformer", 100, "multiple of 16")],
)
def test_an_image_size_that_a_model_cannot_take_is_refused(name, size, message, folder):
    with refused("image_size", size, name, message):
        tasks.data_of(TrainConfig(model=name, data_dir=folder, image_size=size))


@pytest.mark.parametrize("size", [32, 96, 256])
def test_the_vision_transformer_takes_images_of_other_sizes_with_the_same_parameters(size):
    with torch.device("meta"):
        model = tasks.get("timm_vision_transformer").build_model()
        assert model.pos_embed.shape == (1, 1 + 14 * 14, 384)  # type: ignore[union-attr]
        assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)
        features = model.forward_features(torch.empty(2, 3, size, size))  # type: ignore[operator]
        assert features.shape == (2, 1 + (size // 16) ** 2, 384)


@pytest.mark.parametrize(
    ("name", "branches"), [("resnet18", 8), ("resnet50", 16), ("timm_vovnet", 30)]
)
def test_every_branch_starts_small_and_nothing_else_does(name, branches):
    torch.manual_seed(0)
    parameters = tasks.get(name).build_model().parameters()
    scales = [p for p in parameters if p.ndim == 1 and float(p.detach().amax()) > 0]
    others = [p for p in scales if not torch.all(p == BRANCH_SCALE)]
    assert len(scales) - len(others) == branches
    assert all(torch.all(p == 1) for p in others if len(p) != 1000)


@pytest.mark.parametrize("name", ["alexnet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_filters_start_centred_in_all_layers_but_the_last(name):
    torch.manual_seed(0)
    *hidden, last = [
        m for m in tasks.get(name).build_model().modules() if isinstance(m, nn.Conv2d | nn.Linear)
    ]
    for layer in hidden:
        weight = layer.weight.detach().flatten(1)
        assert weight.mean(dim=1).abs().max() < 1e-6
        assert float(weight.square().sum(dim=1).mean()) == pytest.approx(
            2 / (1 - 1 / np.pi), rel=0.05
        )
    assert last.weight.detach().mean(dim=1).abs().max() > 1e-6


def gradients(name: str, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of every parameter, in float64, without dropout."""
    without_dropout(model)
    model.zero_grad()
    tasks.get(name).loss(model, batch).backward()
    return {key: p.grad.double() for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet", "resnet18", "timm_vision_transformer", "timm_vovnet", "vgg16"]
)
def test_rounding_stays_small_in_the_gradients_at_the_initial_weights(name, tmp_path):
    spec = MockSpec(classes=8, train_per_class=2, val_per_class=1)
    generate(tmp_path / "data", spec, progress=False)
    config = TrainConfig(model=name, data_dir=str(tmp_path / "data"), image_size=64)
    data = tasks.data_of(config).train
    batch = torch.utils.data.default_collate([data[i] for i in range(16)])
    images, labels = data.finish_batch(batch)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = tasks.get(name).build_model()
    rounded = gradients(name, model, (images, labels))
    exact = gradients(name, model.double(), (images.double(), labels))
    assert set(rounded) == set(exact) == {key for key, _ in model.named_parameters()}
    for key, gradient in exact.items():
        assert (rounded[key] - gradient).norm() < 1e-2 * gradient.norm(), key
        assert abs(float(rounded[key].norm() / gradient.norm()) - 1) < 4e-3, key


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
        for size in (task.image_size, task.quick["image_size"]):
            assert model(torch.empty(2, 3, size, size)).shape == (2, classes)
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
    replaced = dataclasses.replace(task, build_model=lambda: nn.Linear(4, 7))
    assert replaced.with_outputs(CLASSES) is replaced  # its model is not the task's own


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
    data = tasks.data_of(TrainConfig(model="resnet18", data_dir=str(copy), image_size=32))
    assert [data.held_out[index][1] for index in range(4)] == [1, 1, 2, 2]


def test_a_run_says_once_what_its_folder_holds(folder, tmp_path, capsys):
    data = shutil.copytree(folder, tmp_path / "data")
    (data / "train" / "n00000002" / "notes.txt").write_text("x")
    run_dir = str(tmp_path / "run")
    results = trained(str(data), batch_size=4, max_steps=2, run_dir=run_dir)
    said = f"left out of {data}/train: 1 with another ending (n00000002/notes.txt)"
    assert results.data == {
        "train": 18,
        "held_out": 6,
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


def test_a_folder_of_one_class_trains_and_is_announced(folder, tmp_path):
    data = shutil.copytree(folder, tmp_path / "data")
    for other in data.glob("*/n0000000[23]"):
        shutil.rmtree(other)
    results = trained(str(data), run_dir=str(tmp_path / "run"))
    assert (results.data["classes"], results.data["outputs"]) == (1, 1)
    assert "one class alone" in results.data["notices"][0]
    assert results.loss["curve"] == [[1, 0.0]] and results.metrics["top1"] == 1.0


def test_weights_for_1000_classes_leave_a_folder_s_head_as_drawn(folder, tmp_path):
    given = tasks.get("resnet18").build_model().state_dict()
    torch.save({"state_dict": given}, tmp_path / "imagenet.pth")
    start, run_dir = str(tmp_path / "imagenet.pth"), str(tmp_path / "run")
    more = {"evaluate": False, "checkpoint_every": "100", "run_dir": run_dir}
    results = trained(folder, pretrained=start, lr=0.0, **more)
    fit = results.started_from
    assert (fit["fitted"], fit["tensors"]) == (120, 122)
    assert list(fit["other_shape"]) == ["fc.weight", "fc.bias"]
    assert fit["missing"] == fit["unexpected"] == []
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    weights = torch.load(checkpoint, weights_only=True)["model"]
    assert torch.equal(weights["layer3.0.conv1.weight"], given["layer3.0.conv1.weight"])
    assert weights["fc.weight"].shape == (3, 512)
