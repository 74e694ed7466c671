"""What is read of the processor, on x86 and on ARM, of the checkout and of libraries."""

from __future__ import annotations

import importlib.metadata
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gallery_lib.system import hardware, paths, version

X86 = """processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16
"""
OLDER_X86 = X86.replace(" avx512f avx512_bf16", "")
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


@pytest.fixture(autouse=True)
def flags_are_read_anew() -> Iterator[None]:
    hardware.cpu_flags.cache_clear()
    yield
    hardware.cpu_flags.cache_clear()


@pytest.mark.parametrize(
    ("facts", "name", "in_bf16", "channels_last"),
    [
        (X86, "AMD EPYC 9R14 (avx2, avx512f, avx512_bf16)", True, True),
        (OLDER_X86, "AMD EPYC 9R14 (avx2)", False, False),
        (ARM, "ARM 0x41 0xd40 (asimd, sve, bf16)", True, True),
        (
            ARM.replace("sve bf16", "").replace("0xd40", "0xd0c"),
            "ARM 0x41 0xd0c (asimd)",
            False,
            True,
        ),
    ],
    ids=["AVX-512", "AVX2", "ARM with bfloat16", "ARM without"],
)
def test_a_processor_is_named_so_that_another_kind_has_another_name(
    facts: str,
    name: str,
    in_bf16: bool,
    channels_last: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(facts)
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "cpuinfo")
    assert hardware.processor() == name
    assert hardware.computes_in_bf16("cpu") is in_bf16
    assert hardware.prefers_channels_last("cpu") is channels_last


def test_where_nothing_is_said_of_the_processor_it_still_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "none")
    assert hardware.cpu_model() and hardware.cpu_flags() == frozenset()


def test_a_revision_is_the_commit_and_whether_tracked_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        of = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(of, check=True, capture_output=True, text=True).stdout.strip()

    assert hardware.git_revision(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    git("tag", "-am", "a tag", "v1")
    commit = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "other").touch()
    assert hardware.git_revision(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert hardware.git_revision(tmp_path) == f"{commit}+changes"


def test_a_library_that_is_not_installed_has_no_version() -> None:
    assert version.library_version("numpy") == importlib.metadata.version("numpy")
    assert version.library_version("no-such-library") is None


@pytest.mark.parametrize("uv", ["on PATH", "of prepare.sh", "none"])
def test_an_extra_is_installed_into_this_python_by_uv_or_else_pip(
    uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, own = tmp_path / "check out", tmp_path / "uv-tool" / "bin" / "uv"
    monkeypatch.setattr(paths, "checkout", lambda: root)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    found = "/usr/bin/uv" if uv == "on PATH" else None
    monkeypatch.setattr(version.shutil, "which", lambda name: found)
    if uv == "of prepare.sh":
        own.parent.mkdir(parents=True)
        own.touch()
    by_uv = [found or str(own), "pip", "install", "--python", sys.executable]
    start = [sys.executable, "-m", "pip", "install"] if uv == "none" else by_uv
    assert shlex.split(version.install_command("site")) == [*start, "-e", f"{root}[site]"]
