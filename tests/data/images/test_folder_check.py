"""Which files of a folder count, how images are decoded, and how defects are reported."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torchvision
from data_command import run_data_command
from PIL import Image
from refusal import check_refused_command, refused
from torchvision.datasets.folder import IMG_EXTENSIONS, default_loader, make_dataset

from gallery_lib.data.folders import printable, walk
from gallery_lib.data.images.decode import decode
from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.data.images.listing import EXTENSIONS, check_image_folder, examine, list_split

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
    for name in (".git/inside.jpg", "kept.jpg", "._kept.jpg", "b.gif", "a.gif", "below/c"):
        (folder / name).write_bytes(b"x")
    (folder / "below" / "empty.jpg").touch()
    os.mkfifo(folder / "pipe.jpg")
    links = {"gone.png": tmp_path / "nothing", "itself.png": folder / "itself.png", "up": tmp_path}
    links |= {"zero.jpg": Path("/dev/zero"), "below/here": folder / "below"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)  # a socket's path is short
        listener.bind("socket.jpg")
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


run = partial(run_data_command, "check_imagenet")


def test_a_good_folder_is_summarised(tiny_root: Path) -> None:
    shown = f"{tiny_root}: 3 classes, 18 train, 6 val images; "
    assert str(check_image_folder(tiny_root)) == f"{shown}12 read, all fine"
    assert str(check_image_folder(tiny_root, full=True)) == f"{shown}24 read, all fine"


@pytest.mark.parametrize(
    ("content", "given", "values"),
    [
        ("", "none", ["data_prep/mock_imagenet.py"]),
        ("pictures/", ".", ["train/", "pictures"]),
        ("train/", ".", ["/train ", "train/CLASS"]),
        ("train/cat/", "train", ["Did you mean its parent"]),
        ("file", "file", ["is a file"]),
        ("", "x" * 300, ["File name too long"]),
    ],
)
def test_a_folder_of_another_layout_is_refused_by_the_check_and_by_a_training(
    tmp_path: Path, content: str, given: str, values: list[str]
) -> None:
    if content.endswith("/"):
        (tmp_path / content).mkdir(parents=True)
    elif content:
        (tmp_path / content).touch()
    with refused("data_dir", *values, given if given != "." else tmp_path):
        check_image_folder(tmp_path / given)
    with refused("data_dir", *values):
        ImageFolder(tmp_path / given, "train", 32, train=True)


def test_all_faults_are_named_in_one_run(tiny_copy: Path) -> None:
    (tiny_copy / "train" / "n00000009").mkdir()
    (tiny_copy / "val" / "only here").mkdir()
    image = next((tiny_copy / "val" / "n00000001").iterdir())
    image.write_bytes(b"none")
    words = "1 class folders of", "n00000009", "1 class(es) that train/ lacks: only here", image
    for full in (False, True):
        with refused("data_dir", "faults were found", *words):
            check_image_folder(tiny_copy, full=full)


def test_the_full_check_names_every_damaged_file_with_the_reason(tiny_copy: Path) -> None:
    files = sorted((tiny_copy / "train" / "n00000001").iterdir())
    data = files[4].read_bytes()
    files[4].write_bytes(data[: len(data) // 2] + bytes(400) + data[len(data) // 2 + 400 :])
    files[5].write_bytes(data[: len(data) // 2])
    check_image_folder(tiny_copy)  # skips both
    with refused("data_dir", "2 of 24 images") as raised:
        check_image_folder(tiny_copy, full=True)
    lines = str(raised.value).splitlines()
    assert lines[1].startswith(f"  {files[4]}: decodes with a warning: Corrupt JPEG data")
    assert lines[2].startswith(f"  {files[5]}: image file is truncated") and len(lines) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a command as somebody else")
def test_a_folder_that_may_not_be_read_ends_the_command_with_2(tiny_copy: Path) -> None:
    for folder in (tiny_copy, *list(tiny_copy.parents)[:-1]):
        folder.chmod(folder.stat().st_mode | 0o555)
    (tiny_copy / "train" / "n00000002").chmod(0)
    result = run(str(tiny_copy), user=65534)
    values = f"{tiny_copy}/train/n00000002", "Permission denied"
    check_refused_command(result.returncode, result.stderr, *values)
    tiny_copy.chmod(0)
    result = run(str(tiny_copy), user=65534)
    values = f"data folder {tiny_copy}", "Permission denied"
    check_refused_command(result.returncode, result.stderr, *values)


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


@pytest.fixture
def every_ending(tmp_path: Path) -> Path:
    """Return a folder of three classes with images of all endings, some in folders below."""
    for split in ("train", "val"):
        for name in ("cat", "Dog", "a-b"):
            for ending in EXTENSIONS:
                save(tmp_path / split / name / f"1{ending}")
                save(tmp_path / split / name / "more" / f"2{ending.upper()}")
            save(tmp_path / split / name / "more-of" / "deep" / "3.jpg")
    return tmp_path


def test_samples_classes_and_order_are_those_of_torchvision(every_ending: Path) -> None:
    assert sorted(EXTENSIONS) == sorted(torchvision.datasets.folder.IMG_EXTENSIONS)
    oracle = torchvision.datasets.ImageFolder(every_ending / "train")
    ours = ImageFolder(every_ending, "train", 32, train=False)
    assert ours.classes == oracle.classes == ["Dog", "a-b", "cat"]
    samples = [(str(ours.path(index)), ours.label(index)) for index in range(len(ours))]
    assert samples == oracle.samples and len(ours) == 3 * (2 * len(EXTENSIONS) + 1)
    assert ours.notices == ()
    assert ours[len(ours) - 1][0].shape == (32, 32, 3)


def test_what_is_left_out_is_counted_by_the_data_set(every_ending: Path) -> None:
    for name in ("cat/list.txt", "cat/old.gif", "labels.csv"):
        (every_ending / "train" / name).write_text("x")
    (every_ending / "train" / ".ipynb_checkpoints").mkdir()
    (line,) = ImageFolder(every_ending, "train", 32, train=True).notices
    assert line == (
        f"left out of {every_ending / 'train'}: 1 hidden (.ipynb_checkpoints), 1 in no class "
        "folder (labels.csv), 2 with another ending (cat/list.txt)"
    )


def test_a_class_whose_files_are_all_left_out_says_which(every_ending: Path) -> None:
    (every_ending / "train" / "emu").mkdir()
    (every_ending / "train" / "emu" / "bird.gif").write_text("x")
    with refused("data_dir", "emu. ", "emu/bird.gif"):
        list_split(every_ending, "train")


def test_held_out_labels_are_numbers_of_the_training_classes(every_ending: Path) -> None:
    save(every_ending / "train" / "A-first" / "1.jpg")  # sorts before all others, and val/ lacks it
    train = ImageFolder(every_ending, "train", 32, train=True)
    held_out = ImageFolder(every_ending, "val", 32, train=False, classes=train.classes)
    assert held_out.classes == train.classes == ["A-first", "Dog", "a-b", "cat"]
    names = {
        held_out.path(index).relative_to(every_ending / "val").parts[0]: held_out.label(index)
        for index in range(len(held_out))
    }
    assert names == {"Dog": 1, "a-b": 2, "cat": 3}
    assert held_out.notices == (
        f"{every_ending / 'val'} has no folder for 1 of the 4 classes of train/ (A-first): "
        "held-out metrics do not count them",
    )


NOISE = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)

# Name: ending, Pillow's mode, options of saving
KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "JPEG": (".jpg", "RGB", {}),
    "progressive JPEG": (".jpeg", "RGB", {"progressive": True}),
    "grey JPEG": (".jpg", "L", {}),
    "CMYK JPEG": (".jpg", "CMYK", {}),
    "PNG": (".png", "RGB", {}),
    "palette PNG": (".png", "P", {}),
    "alpha PNG": (".png", "RGBA", {}),
    "16-bit PNG": (".png", "I;16", {}),
    "bilevel PNG": (".png", "1", {}),
    "WebP": (".webp", "RGB", {}),
    "lossless alpha WebP": (".webp", "RGBA", {"lossless": True}),
    "BMP": (".bmp", "RGB", {}),
    "TIFF": (".tif", "RGB", {}),
    "LZW TIFF": (".tiff", "RGB", {"compression": "tiff_lzw"}),
    "CMYK TIFF": (".tif", "CMYK", {}),
    "16-bit TIFF": (".tif", "I;16", {}),
    "PPM": (".ppm", "RGB", {}),
    "PGM": (".pgm", "L", {}),
}


def picture(mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(NOISE[..., 0].astype(np.uint16) * 257)
    image = Image.fromarray(NOISE)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(NOISE[..., 0]))
    return image.convert(mode)


def write(folder: Path, kind: str, **more: object) -> Path:
    ending, mode, options = KINDS[kind]
    path = folder / f"image{ending}"
    picture(mode).save(path, **options, **more)
    return path


def pixels_of(path: Path) -> np.ndarray:
    data = memoryview(bytearray(path.read_bytes()))
    return decode(data, lambda height, width: (0, 0, height, width))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_torchvision_s_loader_and_nothing_is_found(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path, kind)
    pixels, _ = decode(
        memoryview(bytearray(path.read_bytes())), lambda height, width: (0, 0, height, width)
    )
    assert np.array_equal(pixels, np.asarray(default_loader(path)))
    assert examine(path) is None


def test_an_image_is_not_turned_as_exif_says_and_the_first_frame_counts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    turned = write(tmp_path, "JPEG", exif=exif)
    frames = tmp_path / "frames.tif"
    picture("RGB").save(frames, save_all=True, append_images=[Image.new("RGB", (10, 10))])
    camera = tmp_path / "camera.jpg"
    picture("RGB").save(camera, "MPO", save_all=True, append_images=[Image.new("RGB", (60, 40))])
    for path in (turned, frames, camera):
        pixels, _ = decode(
            memoryview(bytearray(path.read_bytes())), lambda height, width: (0, 0, height, width)
        )
        assert pixels.shape == (90, 120, 3) and np.array_equal(
            pixels, np.asarray(default_loader(path))
        )
        assert examine(path) is None


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_file_is_damaged(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert examine(path)


def middle_zeroed(data: bytes) -> bytes:
    half = len(data) // 2
    return data[:half] + bytes(200) + data[half + 200 :]


@pytest.mark.parametrize(
    ("kind", "damage", "said"),
    [
        ("JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("progressive JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("grey JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("CMYK JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("JPEG", lambda data: data[:-1], "truncated"),
        ("PNG", middle_zeroed, "broken data stream"),
        ("PNG", lambda data: data.replace(b"IDAT", b"IDAT\0", 1)[:-1], ""),
        ("LZW TIFF", middle_zeroed, "decoder error"),
        ("JPEG", lambda data: b"<html>not found</html>", "cannot identify image file"),
        ("JPEG", lambda data: b"", "cannot identify image file"),
    ],
)
def test_damage_inside_is_found(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = write(tmp_path, kind)
    path.write_bytes(damage(path.read_bytes()))
    found = examine(path)
    assert found is not None and said in found and "BytesIO" not in found
