"""Image classification: what the tasks show and count, their images, and effects of rounding."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.mock_imagenet import MockSpec, generate
from gallery_lib.errors import InputError
from gallery_lib.tasks import memory_estimate
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.initial_weights import BRANCH_SCALE
from gallery_lib.tasks.task import Splits
from gallery_lib.train.loop import train
from gallery_lib.train.results import read_results

NAMES = ("alexnet", "resnet18", "resnet50", "timm_vision_transformer", "timm_vovnet", "vgg16")
CLASSES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a small mock ImageNet, which must not be changed."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generate(
        root,
        MockSpec(classes=CLASSES, train_per_class=6, val_per_class=2),
        workers=1,
        progress=False,
    )
    return str(root)


@pytest.fixture(scope="module")
def splits(folder: str) -> Splits:
    """Return the mock ImageNet as the tasks load it, 32 pixels wide."""
    return tasks.data_of(TrainConfig(model="resnet18", data_dir=folder, image_size=32))


class Always(nn.Module):
    """Model that takes every image for class `first`.

    Where `first` is not among the classes asked for, it takes them for `second`.
    """

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 1000)
        logits[:, self.first], logits[:, self.second] = 2.0, 1.0
        return logits


def test_the_examples_are_augmented_training_images_of_every_class(splits: Splits) -> None:
    shown = classification.examples(splits, count=9)
    assert len(shown.images) == len(shown.captions) == 9
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in shown.images)
    assert shown.captions == ["n00000001"] * 3 + ["n00000002"] * 3 + ["n00000003"] * 3
    assert "9 of 18 training images, augmented, 32×32, of 3 classes" in shown.description
    assert all(
        np.array_equal(image, splits.train[2 * i][0].numpy())
        for i, image in enumerate(shown.images)
    )


def test_the_predictions_say_what_each_model_takes_a_held_out_image_for(splits: Splits) -> None:
    shown = classification.predictions(
        {"one": Always(0, 1), "two": Always(999, 2)}, splits, count=6
    )
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in shown.images)
    assert shown.captions == [
        (
            f"is {name}\n"
            f"one: n00000001 {'✓' if name == 'n00000001' else '✗'}\n"
            f"two: n00000003 {'✓' if name == 'n00000003' else '✗'}"
        )
        for name in ("n00000001", "n00000001", "n00000002", "n00000002", "n00000003", "n00000003")
    ]


def test_chance_is_that_of_guessing_among_the_classes_of_the_data(splits: Splits) -> None:
    assert classification.chance(splits) == {"top1": 1 / CLASSES, "top5": 1.0}


def test_top1_and_top5_count_hits() -> None:
    labels = torch.tensor([0, 1, 5, 999])
    counted = classification.metrics(
        lambda images: torch.arange(1000.0, 0, -1).repeat(4, 1), (torch.empty(4, 3, 32, 32), labels)
    )  # type: ignore[arg-type]
    assert {name: (int(hits), count) for name, (hits, count) in counted.items()} == {
        "top1": (1, 4),
        "top5": (2, 4),
    }


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_loss_is_computed_in_float32_at_least(
    dtype: torch.dtype, expected: torch.dtype
) -> None:
    logits = torch.randn(4, 1000, dtype=dtype)
    loss = classification.loss(lambda images: logits, (torch.empty(4), torch.arange(4)))  # type: ignore[arg-type]
    assert loss.dtype is expected
    assert float(loss) == float(nn.functional.cross_entropy(logits.to(expected), torch.arange(4)))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_takes_images_of_its_real_and_of_its_quick_size(name: str) -> None:
    task = tasks.get(name)
    with torch.device("meta"):
        model = task.build_model().eval()
        for size in (task.image_size, task.quick["image_size"]):
            assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("alexnet", 62, "at least 63"), ("timm_vision_transformer", 100, "multiple of 16")],
)
def test_an_image_size_that_a_model_cannot_take_is_refused(
    name: str, size: int, message: str, folder: str
) -> None:
    with pytest.raises(InputError, match=f"image_size={size}: {name} needs .*{message} pixels"):
        tasks.data_of(TrainConfig(model=name, data_dir=folder, image_size=size))


@pytest.mark.parametrize("size", [32, 96, 256])
def test_the_vision_transformer_takes_images_of_other_sizes_with_the_same_parameters(
    size: int,
) -> None:
    with torch.device("meta"):
        model = tasks.get("timm_vision_transformer").build_model()
        assert model.pos_embed.shape == (1, 1 + 14 * 14, 384)  # type: ignore[union-attr]
        assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)
        assert model.forward_features(torch.empty(2, 3, size, size)).shape == (
            2,
            1 + (size // 16) ** 2,
            384,
        )  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "branches"), [("resnet18", 8), ("resnet50", 16), ("timm_vovnet", 30)]
)
def test_every_branch_starts_small_and_nothing_else_does(name: str, branches: int) -> None:
    torch.manual_seed(0)
    scales = [
        p
        for p in tasks.get(name).build_model().parameters()
        if p.ndim == 1 and float(p.detach().amax()) > 0
    ]
    small = [p for p in scales if torch.all(p == BRANCH_SCALE)]
    assert len(small) == branches
    assert all(
        torch.all(p == 1) for p in scales if not any(p is s for s in small) and len(p) != 1000
    )


@pytest.mark.parametrize("name", ["alexnet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_filters_start_centred_in_all_layers_but_the_last(name: str) -> None:
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
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.zero_grad()
    tasks.get(name).loss(model, batch).backward()
    return {key: p.grad.double() for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet", "resnet18", "timm_vision_transformer", "timm_vovnet", "vgg16"]
)
def test_rounding_stays_small_in_the_gradients_at_the_initial_weights(
    name: str, tmp_path: Path
) -> None:
    generate(
        tmp_path / "data",
        MockSpec(classes=8, train_per_class=2, val_per_class=1),
        workers=1,
        progress=False,
    )
    data = tasks.data_of(
        TrainConfig(model=name, data_dir=str(tmp_path / "data"), image_size=64)
    ).train
    items = [data[i] for i in range(16)]
    images, labels = data.finish_batch(
        (torch.stack([image for image, _ in items]), torch.tensor([label for _, label in items]))
    )  # type: ignore[attr-defined]
    torch.manual_seed(0)
    model = tasks.get(name).build_model()
    rounded = gradients(name, model, (images, labels))
    exact = gradients(name, model.double(), (images.double(), labels))
    assert set(rounded) == set(exact) == {key for key, _ in model.named_parameters()}
    for key, gradient in exact.items():
        assert (rounded[key] - gradient).norm() < 1e-2 * gradient.norm(), key
        assert abs(float(rounded[key].norm() / gradient.norm()) - 1) < 4e-3, key


def named(folder: Path, classes: int, image_size: int = 40) -> str:
    """Make a folder of small random images.

    Each class has three to train on and one held out.
    """
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 1)):
        for label in range(classes):
            place = folder / split / f"class-{label:04d}"
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(
                    rng.integers(0, 255, (image_size, image_size, 3), dtype=np.uint8)
                ).save(place / f"{number}.webp")
    return str(folder)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [1, 3, 1200])
def test_a_model_has_an_output_for_each_class_of_a_folder(
    name: str, classes: int, tmp_path: Path
) -> None:
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
    more = memory_estimate.needed_bytes(config) - memory_estimate.needed_bytes(
        TrainConfig(model=name)
    )
    assert (more > 0) == (classes > 1000) and abs(more) >= abs(
        3 * 4 * (task.parameters - declared.parameters)
    )  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_the_mock_data_of_the_gallery_keeps_the_outputs_of_imagenet(name: str) -> None:
    task = tasks.of(TrainConfig(model=name))
    assert task is tasks.get(name) and task.head is not None and task.head.outputs == 1000


def test_a_model_that_was_put_in_place_of_a_task_s_own_stays_as_it_is(folder: str) -> None:
    task = dataclasses.replace(tasks.get("resnet18"), build_model=lambda: nn.Linear(4, 7))
    assert task.with_outputs(CLASSES) is task


def test_a_folder_without_classes_is_refused_before_a_model_is_built(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        tasks.of(TrainConfig(model="resnet18", data_dir=str(tmp_path / "none")))


def test_fewer_outputs_than_five_have_every_label_among_the_top_five() -> None:
    labels = torch.tensor([0, 1, 2])
    counted = classification.metrics(
        lambda images: torch.arange(3.0, 0, -1).repeat(3, 1), (torch.empty(3, 3, 32, 32), labels)
    )  # type: ignore[arg-type]
    assert {name: (int(hits), count) for name, (hits, count) in counted.items()} == {
        "top1": (1, 3),
        "top5": (3, 3),
    }


def test_held_out_labels_are_the_training_data_s_numbers(folder: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.rmtree(copy / "val" / "n00000001")
    held_out = tasks.data_of(
        TrainConfig(model="resnet18", data_dir=str(copy), image_size=32)
    ).held_out
    assert [held_out[index][1] for index in range(4)] == [1, 1, 2, 2]


def test_a_run_says_once_what_its_folder_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = named(tmp_path / "data", classes=3)
    (tmp_path / "data" / "train" / "class-0001" / "notes.txt").write_text("x")
    config = TrainConfig(
        model="resnet18",
        data_dir=data,
        image_size=32,
        batch_size=4,
        max_steps=2,
        workers=0,
        save_weights=True,
        run_dir=str(tmp_path / "run"),
    )
    results = train(config)
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
    weights = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    assert weights["fc.weight"].shape == (3, 512)
