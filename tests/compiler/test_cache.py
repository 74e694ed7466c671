"""Where compiled code is cached, what becomes of a damaged cache, and bundles of it in one file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gallery_lib.cli.main import main
from gallery_lib.compiler import bundle, cache
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system import paths


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    cache.cache_variables()
    (tmp_path / "inductor" / "a.so").touch()
    return tmp_path / "inductor"


@pytest.mark.parametrize("suspects", [[True], [True, False], [False]])
def test_a_failed_run_is_run_once_more_where_a_damaged_file_may_be_the_reason_and_no_other(
    folder, capsys, suspects
):
    failures = [*suspects]

    def body() -> str:
        if not failures:
            return f"{len(list(folder.glob('*')))} files"
        error = RunFailed("the run did not finish.\nmore")
        error.suspects_compiled_code = failures.pop(0)
        raise error

    if suspects == [True]:
        assert cache.without_damage(body) == "0 files"
    else:
        with pytest.raises(RunFailed):
            cache.without_damage(body)
    assert failures == []
    assert (folder.parent / "inductor.damaged" / "a.so").exists() is suspects[0]
    assert capsys.readouterr().err.count("\n") == suspects[0]


def test_a_path_with_spaces_is_avoided(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "my é folder" / "inductor"))
    assert cache.folder().parent == tmp_path / ".cache" / "gallery_lib"
    other = cache.folder()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "an other" / "inductor"))
    assert cache.folder() != other


def test_what_torch_sets_by_itself_is_nobodys_choice(monkeypatch):
    chosen_by_torch = Path(tempfile.gettempdir(), "torchinductor_me")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(chosen_by_torch))
    assert cache.folder() == paths.cache_dir() / "inductor"


def test_a_comparison_does_not_import_torchs_compiler_which_makes_a_folder():
    loaded = "import sys, gallery_lib.measure.bench; print('torch._dynamo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", loaded]) == b"False\n"


@pytest.mark.slow
def test_precompiled_headers_lie_in_the_cache(folder):
    from torch._inductor import codecache

    cache.keep_headers()
    assert Path(codecache._HEADER_DIR).parent == folder


# --------------------------------------------------------------------------------------------------
# Compiled code in one file: what a second cache takes from it, and what is refused


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a bundle of two files, with an empty cache to load it into."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "first"))
    for path in (cache.folder() / "ab" / "code.so", bundle._folders()["cpu_kernels"] / "own.so"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(path.name.encode())
    (cache.folder() / "ab" / "code.lock").touch()
    file = tmp_path / "bundle.zip"
    assert bundle.save(file) == (2, 13)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "second"))
    return file


def test_a_second_cache_has_the_files_and_keeps_its_own(saved: Path) -> None:
    own = cache.folder() / "ab" / "code.so"
    own.parent.mkdir(parents=True)
    own.write_text("here already")
    assert bundle.load(saved) == (1, False)
    assert own.read_text() == "here already"
    assert (bundle._folders()["cpu_kernels"] / "own.so").read_text() == "own.so"
    assert bundle.load(saved) == (0, False)
    assert not list(cache.folder().parent.glob("bundle-*"))


def _rewritten(file: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            if (changed := change(name, content)) is not None:
                archive.writestr(name, changed)


def _with(**facts: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name != "bundle.json":
            return content
        contents = json.loads(content)
        contents["machine"] |= facts
        return json.dumps(contents).encode()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_with(torch="2.3.4"), [f"compiled with torch 2.3.4; here it is {torch.__version__}"]),
        (_with(GPU="NVIDIA H200"), ["compiled with GPU NVIDIA H200; here it is none"]),
        (
            _with(processor=" ".join(["x86_64,", *map("flag{}".format, range(20))])),
            ["compiled with processor with flag0 flag1", "Compile on this machine instead"],
        ),
        (lambda name, content: content[:-1] + b"?", ["is damaged"]),
        (lambda name, content: None if name.endswith("own.so") else content, ["damaged"]),
        (lambda name, content: None if name == "bundle.json" else content, ["no bundle of"]),
        (
            lambda name, content: content.replace(b"cpu_kernels/own.so", b"cpu_kernels/../own"),
            ["cpu_kernels/../own lies outside the cache"],
        ),
        (lambda name, content: content.replace(b"cpu_kernels/own.so", b"/own"), ["outside"]),
    ],
)
def test_other_machines_and_damaged_files_are_refused_and_nothing_is_loaded(
    saved: Path, change: Callable[[str, bytes], bytes | None], words: list[str]
) -> None:
    _rewritten(saved, change)
    with pytest.raises(InputError) as caught:
        bundle.load(saved)
    assert all(word in str(caught.value) for word in words), caught.value
    assert not [path for path in cache.folder().parent.rglob("*") if path.is_file()]


@pytest.mark.parametrize("content", [b"", b"no archive", "cut"])
def test_other_files_are_refused(saved: Path, content: bytes | str) -> None:
    saved.write_bytes(saved.read_bytes()[:-200] if isinstance(content, str) else content)
    with pytest.raises(InputError, match=r"no bundle of `gallery cache save`, or it is damaged"):
        bundle.load(saved)


def test_the_command_saves_and_loads_and_names_what_is_not_there(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "load", str(saved)]) == 0
    assert main(["cache", "save", str(saved)]) == 0
    assert capsys.readouterr().err == ""
    missing = saved.parent / "none" / "bundle.zip"
    for word, said in (("load", f"{missing} does not exist"), ("save", "folder")):
        assert main(["cache", word, str(missing)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert not missing.parent.exists()


def test_an_empty_cache_has_nothing_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="nothing was compiled yet"):
        bundle.save(tmp_path / "bundle.zip")
    assert not (tmp_path / "bundle.zip").exists()
