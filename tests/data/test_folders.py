"""Which files of a folder count, in which order, and how the others are reported."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from gallery_lib.data.folders import printable, walk

PARTS = [b"a", b"A", b"b-c", b"b", b"b.d", b"z z", b"\xff", b"0", b"new\nline"]
PARTS += ["é".encode(), "\uff01".encode()]
ENDINGS = [b".jpg", b".JPG", b".jpeg", b".PNG", b".webp", b".TIFF", b".tif", b".gif", b".txt", b""]


def a_tree(folder: Path, seed: int) -> None:
    """Write files at up to three levels, whose names sort differently as bytes, text and paths."""
    rng = random.Random(seed)
    for _ in range(60):
        parts = [rng.choice(PARTS) for _ in range(rng.randint(0, 3))]
        place = folder.joinpath(*map(os.fsdecode, parts))
        place.mkdir(parents=True, exist_ok=True)
        (place / os.fsdecode(b"f" + rng.choice(PARTS) + rng.choice(ENDINGS))).write_bytes(b"x")


@pytest.mark.parametrize("seed", range(3))
def test_files_and_their_order_are_those_of_torchvision(tmp_path: Path, seed: int) -> None:
    a_tree(tmp_path / "data" / "cat", seed)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.jpg").write_bytes(b"x")
    (tmp_path / "data" / "cat" / "m.jpg").symlink_to(tmp_path / "elsewhere" / "linked.jpg")
    (tmp_path / "data" / "cat" / "m").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "cat" / "again").symlink_to(tmp_path / "elsewhere")
    files, left_out = walk(tmp_path / "data" / "cat", IMG_EXTENSIONS)
    samples = make_dataset(tmp_path / "data", {"cat": 0}, IMG_EXTENSIONS)
    assert [str(tmp_path / "data" / "cat" / file) for file in files] == [
        path for path, _ in samples
    ]
    everything = sum(len(names) for _, _, names in os.walk(tmp_path / "data", followlinks=True))
    assert len(files) + sum(left_out.counts.values()) == everything and len(files) > 20
    assert set(left_out.counts) == {"with another ending"}


def test_what_cannot_be_an_item_is_counted_by_reason_with_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cat"
    (folder / "below").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "inside.jpg").write_bytes(b"x")
    (folder / "kept.jpg").write_bytes(b"x")
    for name in ("b.gif", "a.gif", "below/c"):
        (folder / name).write_bytes(b"x")
    (folder / "._kept.jpg").write_bytes(b"x")
    (folder / "below" / "empty.jpg").touch()
    (folder / "gone.png").symlink_to(tmp_path / "nothing")
    (folder / "itself.png").symlink_to(folder / "itself.png")
    os.mkfifo(folder / "pipe.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)  # a socket's path is short
        listener.bind("socket.jpg")
    (folder / "up").symlink_to(tmp_path)
    (folder / "below" / "here").symlink_to(folder / "below")
    files, left_out = walk(folder, (".jpg", ".png"))
    assert files == ["kept.jpg"]
    assert left_out.counts == {
        "hidden": 2,
        "with another ending": 3,
        "empty": 1,
        "a broken link": 2,
        "a pipe, socket or device": 3,
        "a link to a folder above it": 2,
    }
    assert left_out.examples["with another ending"] == "a.gif"
    assert left_out.examples["empty"] == "below/empty.jpg"
    assert "2 a broken link (gone.png)" in str(left_out) and "\n" not in str(left_out)


def test_links_that_lead_to_one_another_end(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).mkdir()
        (tmp_path / one / "x.jpg").write_bytes(b"x")
        for number in range(3):  # followed by torchvision to a depth of forty, three ways each
            (tmp_path / one / f"to-{other}-{number}").symlink_to(tmp_path / other)
    files, left_out = walk(tmp_path / "a", (".jpg",))
    assert files == ["x.jpg", "to-b-0/x.jpg", "to-b-1/x.jpg", "to-b-2/x.jpg"]
    assert left_out.counts == {"a link to a folder above it": 9}


def test_names_are_shown_on_one_line_of_utf_8() -> None:
    assert printable("é x.jpg") == "é x.jpg"
    shown = printable(b"a\nb\xff\x1b[31m")
    assert shown == "a\\nb\\udcff\\x1b[31m" and shown.encode()
