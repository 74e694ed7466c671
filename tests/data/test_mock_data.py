"""Mock data appear whole or not at all, are made once, and depend on seed and index alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from data_command import run_data_command
from made_up_text import documents
from refusal import check_refused_command, refused
from torch.utils.data import DataLoader

from gallery_lib.data import text
from gallery_lib.data.images import mock_imagenet, mock_segmentation
from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.data.images.mock_imagenet import (
    MAX_CLASSES,
    MockSpec,
    class_id,
    class_in_words,
    encode,
    look,
    render,
)
from gallery_lib.data.images.segmentation_folder import SegmentationFolder
from gallery_lib.data.masking import PackedText, infill, mask_tokens
from gallery_lib.data.mock_folder import Made, is_made, make
from gallery_lib.data.speech import mock_speakers, mock_speech
from gallery_lib.errors import RunFailed
from gallery_lib.tasks.tts_angular import SpeakerPairs

RECORD = {"kind": "test", "count": 2}
JOBS = {"a/1.txt": ("one",), "a/2.txt": ("two",), "b/3.txt": ("three",)}


def made_in(
    root: Path, record: dict[str, object] = RECORD, write: Callable[..., Any] = Path.write_text
) -> Made:
    return make(root, record, JOBS, write, progress=False)


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*.txt")}


def test_the_second_call_finds_it_complete_and_changes_nothing(tmp_path: Path) -> None:
    first = made_in(tmp_path / "sub" / "data")
    assert (first.now, first.files) == (True, 3) and "made now" in str(first)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = made_in(tmp_path / "sub" / "data")
    assert (second.now, second.files) == (False, 3) and "complete already" in str(second)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


class Interrupt:  # a writer that is interrupted at a file, of which it has written a part
    def __init__(self, at: str) -> None:
        self.at = at
        self.written: list[str] = []

    def __call__(self, path: Path, content: str) -> None:
        if path.name == self.at:
            path.with_name(f".{path.name}.77.tmp").write_text(content[:2])
            raise KeyboardInterrupt
        self.written.append(path.name)
        path.write_text(content)


def test_an_interrupted_call_leaves_nothing_that_looks_whole_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    first = Interrupt("2.txt")
    with pytest.raises(KeyboardInterrupt):
        made_in(tmp_path / "data", write=first)
    # Another thread may have written the file behind the one that was interrupted.
    assert sorted(first.written) in (["1.txt"], ["1.txt", "3.txt"])
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".partial"]
    assert not is_made(tmp_path / "data")
    # As where a call was killed while it moved the content up.
    (tmp_path / "data" / ".partial" / "a").rename(tmp_path / "data" / "a")
    again = Interrupt("none")
    assert made_in(tmp_path / "data", write=again).files == 3
    assert sorted(first.written + again.written) == ["1.txt", "2.txt", "3.txt"]
    assert is_made(tmp_path / "data")
    assert contents(tmp_path / "data") == {"a/1.txt": "one", "a/2.txt": "two", "b/3.txt": "three"}
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["a", "b", "made.json"]


def test_other_data_than_the_folder_holds_are_refused_untouched(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made_in(tmp_path / "data", write=Interrupt("2.txt"))
    for _ in range(2):  # interrupted, then complete
        before = contents(tmp_path / "data")
        with refused("out", "'count': 2", "'count': 3"):
            made_in(tmp_path / "data", {**RECORD, "count": 3})
        assert contents(tmp_path / "data") == before
        made_in(tmp_path / "data")


def test_of_two_at_the_same_time_one_works_and_the_other_waits(tmp_path: Path) -> None:
    calls = []

    def slowly(path: Path, content: str) -> None:
        calls.append(path)
        time.sleep(0.1)
        path.write_text(content)

    with ThreadPoolExecutor() as pool:
        both = [pool.submit(made_in, tmp_path / "data", write=slowly) for _ in range(2)]
    assert len(calls) == 3 and sorted(each.result().now for each in both) == [False, True]


def test_other_content_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused("out", tmp_path, "not empty"):
        made_in(tmp_path)
    with refused("out", tmp_path / "thesis.txt", "is a file"):
        made_in(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failing_write_is_a_failed_run_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="file/data"):
        made_in(tmp_path / "file" / "data")


# name: options, folder in the cache, files, an option out of range
COMMANDS: dict[str, tuple[str, str, int, str]] = {
    "mock_imagenet": (
        "--classes 2 --train-per-class 3 --val-per-class 1",
        "imagenet-small",
        8,
        "--classes 1",
    ),
    "mock_segmentation": ("--train 2 --val 1", "segmentation-small", 6, "--train 0"),
    "mock_speech": (
        "--characters 12 --words 10 --train 4 --val 2",
        "speech-small",
        10,
        "--characters 1",
    ),
    "mock_speakers": ("--train 2 --val 2 --utterances 2", "speakers-small", 10, "--utterances 1"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_makes_data_once_or_refuses_with_code_2(name: str, tmp_path: Path) -> None:
    options, folder, files, impossible = COMMANDS[name]
    run = partial(run_data_command, name, cache=tmp_path, folder=tmp_path)
    root = tmp_path / "data" / folder
    made, again = (run(*options.split()) for _ in "ab")
    assert made.returncode == 0 and f"{root}: {files} files, made now" in made.stdout
    assert again.returncode == 0 and "complete already" in again.stdout
    other = run(*options.split(), "--seed", 1)
    check_refused_command(other.returncode, other.stderr, root, "'seed': 0", "'seed': 1")
    field, value = impossible.removeprefix("--").split()
    refused = run(*impossible.split(), "--out", tmp_path / "none")
    check_refused_command(refused.returncode, refused.stderr, f"{field}={value!r}")
    assert not (tmp_path / "none").exists()


def spoken(seed: int, split: str, index: int, train: int = 20) -> np.ndarray:
    spec = mock_speech.SpeechSpec(characters=12, words=10, train=train, seed=seed)
    return mock_speech.utterance(spec, mock_speech.language(spec), split, index)[0]


ITEMS = {
    "images": lambda seed, *key: mock_imagenet.render(mock_imagenet.MockSpec(seed=seed), *key),
    "masks": lambda *key: mock_segmentation.render(*key)[1],
    "speakers": lambda *key: mock_speakers.features(*key, 1)[:120],
    "speech": spoken,
}


@pytest.mark.parametrize("kind", ITEMS)
def test_an_item_depends_on_seed_split_and_index_alone(kind: str) -> None:
    item = ITEMS[kind]
    first = item(0, "train", 7)
    assert np.array_equal(first, item(0, "train", 7))
    for other in ((1, "train", 7), (0, "val", 7), (0, "train", 8)):
        assert not np.array_equal(first, item(*other))
    assert np.array_equal(spoken(0, "train", 7), spoken(0, "train", 7, train=99))


def test_the_layout_is_that_of_imagenet(tiny_root: Path) -> None:
    paths = [path.relative_to(tiny_root).as_posix() for path in tiny_root.rglob("*.JPEG")]
    assert len(paths) == 24
    assert all(
        re.fullmatch(r"train/(n\d{8})/\1_\d+\.JPEG|val/n\d{8}/ILSVRC2012_val_\d{8}\.JPEG", path)
        for path in paths
    )
    assert {path.split("/")[1] for path in paths} == {"n00000001", "n00000002", "n00000003"}


def test_files_decode_at_the_cost_of_imagenet_s() -> None:
    small = MockSpec()
    images = [render(small, "train", index) for index in range(0, 640, 8)]
    files = [encode(image) for image in images]
    assert 95_000 < np.mean([len(data) for data in files]) < 135_000
    assert np.std([len(data) for data in files]) > 10_000
    shapes = {image.shape for image in images}
    assert (375, 500, 3) in shapes and (500, 375, 3) in shapes and len(shapes) > 5
    assert {simplejpeg.decode_jpeg_header(data)[3] for data in files} == {"444"}


def test_no_two_classes_look_the_same_or_are_called_the_same() -> None:
    names = {class_in_words(class_id(label)) for label in range(MAX_CLASSES)}
    assert len(names) == MAX_CLASSES == len({look(label) for label in range(MAX_CLASSES)})
    for wnid, words in {
        "n00000001": "red discs, striped across",
        "n00001000": "pink half-discs, finely chequered aslant",
        **{other: other for other in ("n01440764", "n00001001", "n00000000", "tench", "n1")},
    }.items():
        assert class_in_words(wnid) == words


MakeData = Callable[[int], Any]  # from a seed


def images(tiny_root: Path, folder: Path) -> MakeData:
    return lambda seed: ImageFolder(tiny_root, "train", 32, train=True, seed=seed)


def masks(tiny_root: Path, folder: Path) -> MakeData:
    mock_segmentation.generate(folder, mock_segmentation.SegmentationSpec(6, 1))
    return lambda seed: SegmentationFolder(folder, "train", (32, 47), train=True, seed=seed)


def speakers(tiny_root: Path, folder: Path) -> MakeData:
    mock_speakers.generate(folder, mock_speakers.SpeakerSpec(6, 2))
    return lambda seed: SpeakerPairs(folder, "train", 20, 40, train=True, seed=seed)


def packed(kind: str, hide: Any) -> Callable[[Path, Path], MakeData]:
    def data_from(tiny_root: Path, folder: Path) -> MakeData:
        folder.mkdir()
        (folder / "all.txt").write_text("\n\n".join(documents(count=4)))
        text.prepare(folder, folder / "tokens")
        tokens = text.find(str(folder / "tokens"), kind)
        return lambda seed: PackedText(tokens, "train", 64, hide, train=True, seed=seed)

    return data_from


@pytest.fixture(
    scope="module",
    params=[images, masks, speakers, packed("wordpiece", mask_tokens), packed("byte-bpe", infill)],
    ids=["images", "masks", "speakers", "masked text", "infilled text"],
)
def data_from(
    request: pytest.FixtureRequest, tiny_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> MakeData:
    """Return what makes a data set of each kind from a seed."""
    return request.param(tiny_root, tmp_path_factory.mktemp("items") / "data")


def inputs(loader: DataLoader[Any]) -> torch.Tensor:
    batches = [batch["input_ids"] if isinstance(batch, dict) else batch[0] for batch in loader]
    return torch.cat(batches)


def test_items_are_those_of_seed_and_epoch_also_in_workers_that_stay(data_from: MakeData) -> None:
    data = data_from(3)
    staying = DataLoader(data, 5, num_workers=2, persistent_workers=True)
    seen = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        seen.append(inputs(DataLoader(data, 5)))
        assert torch.equal(seen[-1], inputs(staying))
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], inputs(DataLoader(data_from(4), 5)))
