"""No message suggests to write into the reader's data_dir, or to delete anything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError


def message_for(task: str, folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        tasks.data_of(TrainConfig(model=task, data_dir=str(folder)))
    return str(caught.value)


@pytest.mark.parametrize(
    "task", ["resnet18", "pytorch_unet", "hf_Bert", "speech_transformer", "tts_angular"]
)
@pytest.mark.parametrize("contents", ["missing", "empty", "of other files", "with empty parts"])
def test_a_folder_that_cannot_be_trained_on_is_left_to_the_reader(
    task: str, contents: str, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    if contents != "missing":
        folder.mkdir()
    if contents == "of other files":
        (folder / "notes.md").write_text("mine")
    if contents == "with empty parts":
        for split in ("train", "val"):
            for part in ("images", "masks"):
                (folder / split / part).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    message = message_for(task, folder)
    assert str(folder) in message
    assert f"--out {folder}" not in message
    assert not {"delete", "remove"} & set(message.lower().replace(",", " ").split())
    assert sorted(tmp_path.rglob("*")) == before
