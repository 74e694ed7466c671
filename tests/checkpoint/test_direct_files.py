"""Files past the page cache: their content, their digest, and what happens on a full disk."""

from __future__ import annotations

import errno
import random
import tempfile
from pathlib import Path

import pytest
import torch

from gallery_lib.checkpoint import direct_files, manifest
from gallery_lib.checkpoint.direct_files import DirectFile, DirectFiles

BUFFER = direct_files._BUFFER_BYTES


def written_in_pieces(path: Path, content: bytes, seed: int) -> DirectFile:
    draw, at = random.Random(seed), 0
    with DirectFile(path) as file:
        while at < len(content):
            piece = content[at : at + draw.choice([1, 100, 4096, 70_001, 3 * BUFFER])]
            assert file.tell() == at
            assert file.write(piece) == len(piece)
            at += len(piece)
    return file


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 9])
def test_a_file_has_the_bytes_that_were_written_and_their_digest(tmp_path, size):
    content = random.Random(size).randbytes(size)
    file = written_in_pieces(tmp_path / "file", content, size)
    assert (tmp_path / "file").read_bytes() == content
    assert file.facts == manifest.facts_of(tmp_path / "file")


def test_an_earlier_file_is_replaced_and_rights_are_the_usual_ones(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    written_in_pieces(tmp_path / "file", b"new", 0)
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "file").read_bytes() == b"new"
    written_in_pieces(tmp_path / "third", b"new", 0)
    assert (tmp_path / "third").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_memory_file_systems_are_written_through_the_cache():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        content = random.Random(1).randbytes(BUFFER + 77)
        file = written_in_pieces(Path(folder) / "file", content, 1)
        assert (Path(folder) / "file").read_bytes() == content
        assert file.facts == manifest.facts_of(Path(folder) / "file")


def test_a_full_disk_is_an_error_of_the_system_and_leaves_no_descriptor():
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError) as failure, DirectFile(Path("/dev/full")) as file:
        file.write(b"x" * (BUFFER + 1))
    assert failure.value.errno == errno.ENOSPC
    assert file.facts is None
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_torch_saves_into_it_and_a_renamed_file_keeps_its_facts(tmp_path):
    files, tensor = DirectFiles(), torch.randn(1001, 1003)
    with files.create_stream(tmp_path / "first", "wb") as stream:
        stream.write(b"before")
        torch.save(tensor, stream)
    files.rename(tmp_path / "first", tmp_path / "second")
    assert files.facts == {"second": manifest.facts_of(tmp_path / "second")}
    with files.create_stream(tmp_path / "second", "rb") as stream:
        assert stream.read(6) == b"before"
        (tmp_path / "rest").write_bytes(stream.read())
    assert torch.equal(torch.load(tmp_path / "rest", weights_only=True), tensor)
