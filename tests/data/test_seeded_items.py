"""Random choices of a data set depend on seed, epoch and index alone, in any worker process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up_text import documents
from torch.utils.data import DataLoader

from gallery_lib.data.images import mock_segmentation
from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.data.images.segmentation_folder import SegmentationFolder
from gallery_lib.data.speech import mock_speakers
from gallery_lib.data.speech.speakers import SpeakerPairs
from gallery_lib.data.text import tokenized
from gallery_lib.data.text.masking import PackedText, infill, mask_tokens

MakeData = Callable[[int], Any]  # from a seed


def images(tiny_root: Path, folder: Path) -> MakeData:
    return lambda seed: ImageFolder(tiny_root, "train", 32, train=True, seed=seed)


def masks(tiny_root: Path, folder: Path) -> MakeData:
    mock_segmentation.generate(folder, mock_segmentation.SegmentationSpec(6, 1))
    return lambda seed: SegmentationFolder(folder, "train", (32, 47), train=True, seed=seed)


def speakers(tiny_root: Path, folder: Path) -> MakeData:
    mock_speakers.generate(folder, mock_speakers.SpeakerSpec(6, 2))
    return lambda seed: SpeakerPairs(folder, "train", 20, 40, train=True, seed=seed)


def text(kind: str, hide: Any) -> Callable[[Path, Path], MakeData]:
    def make(tiny_root: Path, folder: Path) -> MakeData:
        folder.mkdir()
        (folder / "all.txt").write_text("\n\n".join(documents(count=4)))
        tokenized.prepare(folder, folder / "tokens")
        tokens = tokenized.find(str(folder / "tokens"), kind)
        return lambda seed: PackedText(tokens, "train", 64, hide, train=True, seed=seed)

    return make


@pytest.fixture(
    scope="module",
    params=[images, masks, speakers, text("wordpiece", mask_tokens), text("byte-bpe", infill)],
    ids=["images", "masks", "speakers", "masked text", "infilled text"],
)
def make(
    request: pytest.FixtureRequest, tiny_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> MakeData:
    """Return what makes a data set of each kind from a seed."""
    return request.param(tiny_root, tmp_path_factory.mktemp("items") / "data")


def inputs(loader: DataLoader[Any]) -> torch.Tensor:
    batches = [batch["input_ids"] if isinstance(batch, dict) else batch[0] for batch in loader]
    return torch.cat(batches)


def test_items_are_the_same_in_workers_that_stay_and_others_in_another_epoch_or_seed(
    make: MakeData,
) -> None:
    data = make(3)
    staying = DataLoader(data, 5, num_workers=2, persistent_workers=True)
    seen = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        seen.append(inputs(DataLoader(data, 5)))
        assert torch.equal(seen[-1], inputs(staying))
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], inputs(DataLoader(make(4), 5)))
