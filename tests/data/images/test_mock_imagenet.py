"""Mock ImageNet on disk: files written, interruptions, verification and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import simplejpeg
from data_command import data_command, run_data_command
from PIL import Image
from refusal import check_refused_command, refused

from gallery_lib.data.images.mock_imagenet import PRESETS, MockSpec, generate, render, verify
from gallery_lib.data.images.mock_render import encode
from gallery_lib.errors import RunFailed

TINY = MockSpec(classes=3, train_per_class=6, val_per_class=2, seed=5)
REPOSITORY = Path(__file__).resolve().parents[3]
COMMAND = data_command("mock_imagenet")


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.JPEG")}


def test_the_layout_is_that_of_imagenet(tiny_root: Path) -> None:
    paths = files_of(tiny_root)
    assert len(paths) == TINY.total == 24
    assert all(
        re.fullmatch(r"train/(n\d{8})/\1_\d+\.JPEG|val/n\d{8}/ILSVRC2012_val_\d{8}\.JPEG", path)
        for path in paths
    )
    assert {path.split("/")[1] for path in paths} == {"n00000001", "n00000002", "n00000003"}


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(tiny_root: Path, tmp_path: Path) -> None:
    generate(tmp_path / "two", TINY, workers=2, progress=False)
    assert files_of(tmp_path / "two") == files_of(tiny_root)
    assert (tmp_path / "two" / "manifest.jsonl").read_bytes() == (
        tiny_root / "manifest.jsonl"
    ).read_bytes()


def test_an_image_depends_on_seed_split_and_index_alone() -> None:
    small = PRESETS["small"]
    image = render(small, "train", 70)
    assert np.array_equal(image, render(small, "train", 70))
    others = [
        render(small, "train", 71),
        render(small, "val", 70),
        render(MockSpec(10, 64, 20, seed=1), "train", 70),
    ]
    assert not any(np.array_equal(image, other) for other in others)


def test_files_decode_at_the_cost_of_imagenet_s() -> None:
    small = PRESETS["small"]
    images = [render(small, "train", index) for index in range(0, 640, 8)]
    files = [encode(image) for image in images]
    assert 95_000 < np.mean([len(data) for data in files]) < 135_000
    assert np.std([len(data) for data in files]) > 10_000
    shapes = {image.shape for image in images}
    assert (375, 500, 3) in shapes and (500, 375, 3) in shapes and len(shapes) > 5
    assert {simplejpeg.decode_jpeg_header(data)[3] for data in files} == {"444"}


def test_files_have_the_quantization_tables_of_quality_96(tiny_root: Path, tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "reference.jpg", quality=96)
    with (
        Image.open(tmp_path / "reference.jpg") as reference,
        Image.open(next(tiny_root.rglob("*.JPEG"))) as image,
    ):
        assert image.quantization == reference.quantization


def test_a_thousand_classes_are_a_thousand_combinations(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    monkeypatch.setattr(
        "gallery_lib.data.images.mock_render.draw",
        lambda canvas, noise, rng, *kind: drawn.add(kind),
    )
    monkeypatch.setattr("gallery_lib.data.images.mock_render._size", lambda rng: (8, 8))
    for label in range(1000):
        render(MockSpec(1000, 1, 1), "train", label)
    assert len(drawn) == 1000


def test_a_complete_folder_is_left_alone_in_a_fraction_of_a_second(tiny_copy: Path) -> None:
    # A copied folder has new times, so it is checked once.
    generate(tiny_copy, TINY, workers=1, progress=False)
    before = {path: path.stat().st_mtime_ns for path in tiny_copy.rglob("*")}
    done = generate(tiny_copy, TINY)
    assert done.made == 0 and done.seconds < 0.5
    assert {path: path.stat().st_mtime_ns for path in tiny_copy.rglob("*")} == before


def test_only_what_is_missing_or_of_the_wrong_size_is_made_again(
    tiny_root: Path, tiny_copy: Path
) -> None:
    missing, truncated, *others = sorted(tiny_copy.rglob("*.JPEG"))
    missing.unlink()
    truncated.write_bytes(truncated.read_bytes()[:1000])
    inodes = {path: path.stat().st_ino for path in others}
    assert generate(tiny_copy, TINY, workers=1, progress=False).made == 2
    assert {path: path.stat().st_ino for path in others} == inodes
    assert files_of(tiny_copy) == files_of(tiny_root) and verify(tiny_copy) == []


def test_a_torn_manifest_line_counts_as_not_written(tiny_copy: Path) -> None:
    (tiny_copy / "manifest.json").unlink()
    lines = tiny_copy / "manifest.jsonl"
    lines.write_bytes(lines.read_bytes()[:-40])
    assert verify(tiny_copy)[0].startswith("incomplete")
    assert generate(tiny_copy, TINY, workers=1, progress=False).made == 1
    assert verify(tiny_copy) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_no_process_and_the_next_run_completes(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "mock"
    counts = [
        "--classes",
        "4",
        "--train-per-class",
        "40",
        "--val-per-class",
        "2",
        "--workers",
        str(workers),
    ]
    arguments = [*COMMAND, "--out", str(root), *counts]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 30
    while len(files_of(root)) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the parent and its workers
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130 and "run it again" in stderr and "Traceback" not in stderr
    assert (len(children) >= 2) == (workers == 2)
    time.sleep(0.5 if children else 0)  # multiprocessing's own resource tracker follows its parent
    assert not [
        child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    ]
    assert not list(root.rglob("*.tmp"))
    made = len(files_of(root))
    assert 20 <= made < 168 and verify(root)[0].startswith("incomplete")
    done = generate(root, MockSpec(4, 40, 2), workers=2, progress=False)
    # One image may have been written and not yet recorded.
    assert done.made <= 168 - made + 1 and verify(root) == []


@pytest.mark.slow
def test_killing_the_parent_ends_the_workers_and_leftovers_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "mock"
    process = subprocess.Popen(
        [*COMMAND, "--out", str(root), "--workers", "2"], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while len(files_of(root)) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert len(children) >= 2 and not alive
    leftover = root / "train" / "n00000001" / ".n00000001_3.JPEG.77.tmp"
    leftover.write_bytes(b"half an image")
    generate(root, PRESETS["small"], progress=False)
    assert not leftover.exists() and verify(root) == []


def test_verify_names_files_that_are_missing_truncated_altered_or_extra(tiny_copy: Path) -> None:
    missing, truncated, altered, *_ = sorted(tiny_copy.rglob("*.JPEG"))
    missing.unlink()
    truncated.write_bytes(truncated.read_bytes()[:-1])
    data = bytearray(altered.read_bytes())
    data[5000] ^= 1
    altered.write_bytes(data)
    (tiny_copy / "val" / "n00000002" / "cat.JPEG").write_bytes(b"x")
    problems = dict(problem.split(": ", 1) for problem in verify(tiny_copy))
    assert set(problems) == {"missing", "truncated", "altered", "extra"}
    for kind, path in (("missing", missing), ("truncated", truncated), ("altered", altered)):
        assert path.relative_to(tiny_copy).as_posix() in problems[kind]
    assert "val/n00000002/cat.JPEG" in problems["extra"]


def test_a_folder_with_another_spec_is_refused_untouched(tiny_root: Path) -> None:
    before = files_of(tiny_root)
    with refused("out", "seed=5", "seed=6"):
        generate(tiny_root, MockSpec(3, 6, 2, seed=6))
    assert files_of(tiny_root) == before


def test_a_folder_that_is_not_ours_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused("out", "not empty"):
        generate(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_too_little_disk_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(2**40, 2**40 - 2**30, 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with refused(
        "out", tmp_path / "large", re.compile(r"1[45]\d\.\d GiB needed"), "1.0 GiB available"
    ):
        generate(tmp_path / "large", PRESETS["imagenet-sized"])
    assert not (tmp_path / "large").exists()


def test_a_failing_write_is_a_failed_run_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="file/mock"):
        generate(tmp_path / "file" / "mock", TINY)


@pytest.mark.parametrize(
    ("field", "value"),
    [("classes", 1), ("classes", 1001), ("train_per_class", 0), ("val_per_class", 0), ("seed", -1)],
)
def test_an_impossible_spec_names_the_field_and_the_value(field: str, value: int) -> None:
    with refused(field, value):
        MockSpec(**({"classes": 3, "train_per_class": 1, "val_per_class": 1} | {field: value}))


def test_the_command_makes_verifies_and_reports_with_its_exit_codes(tmp_path: Path) -> None:
    run = partial(run_data_command, "mock_imagenet", cache=tmp_path / "cache", folder=tmp_path)

    made = run("--classes", "2", "--train-per-class", "3", "--val-per-class", "1", "--workers", "1")
    root = tmp_path / "cache" / "data" / "imagenet-small"
    assert made.returncode == 0 and "8 images, 8 of them made now" in made.stdout
    assert json.loads((root / "manifest.json").read_text())["counts"] == {"train": 6, "val": 2}
    assert run("--verify").returncode == 0
    victim = next((root / "val").rglob("*.JPEG"))
    victim.unlink()
    verified = run("--verify")
    assert verified.returncode == 1 and f"missing: {victim.relative_to(root)}" in verified.stdout
    other = run("--classes", "3")
    check_refused_command(other.returncode, other.stderr, root, "classes=2", "classes=3")
    assert run("--out", "nowhere", "--verify").returncode == 2
