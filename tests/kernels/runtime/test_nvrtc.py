"""What compiles kernels, keeps their machine code, and decides whether they run.

NVRTC compiles every kernel for every architecture without a GPU, and no kernel spills registers.
Machine code is loaded only if it is what was stored, and only from folders that nobody else may
write to.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import torch
from refusal import refused

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.kernels.runtime import kept_code, launch, nvrtc, usage
from gallery_lib.kernels.runtime.launch import ELEMENTS, MANY_TENSORS
from gallery_lib.kernels.runtime.nvrtc import SOURCES, CompilationFailed, cache_key, compiled
from gallery_lib.system import paths

EM_CUDA = 190
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
FUNCTION = re.compile(  # what ptxas says of a kernel
    r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)\w*'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes "
    r"spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
VARIANT = ("gradient_statistics.cu", (("ELEMENT", "float"),))


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def folder(tmp_path):
    """Return a copy of the sources, to be changed."""
    return shutil.copytree(SOURCES, tmp_path / "cuda")


OTHERS = [pytest.param(each, marks=pytest.mark.thorough) for each in ARCHITECTURES if each != 90]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [90, *OTHERS])
def test_every_kernel_compiles_and_none_spills(architecture):
    if architecture not in nvrtc.supported_architectures():
        pytest.skip(f"NVRTC {nvrtc.versions()['nvrtc']} does not compile for sm_{architecture}")
    sources = sorted(path.name for path in SOURCES.glob("*.cu"))
    many = [(*element, ("TENSORS", str(MANY_TENSORS))) for element in ELEMENTS.values()]
    for source, defines in itertools.product(sources, [*ELEMENTS.values(), *many]):
        lists = "#define TENSORS" in "".join(nvrtc.source_with_includes(source).values())
        if defines in many and not lists:
            continue
        kernels = re.findall(
            r'extern "C" __global__ void .*?(\w+)\(const', (SOURCES / source).read_text()
        )
        cubin, log = compiled(source, defines, architecture)
        rows = list(FUNCTION.finditer(log))
        assert sorted(row["kernel"] for row in rows) == sorted(kernels), source
        for row in rows:
            assert int(row["architecture"]) == architecture
            spills = (row["stores"], row["loads"], row["stack"])
            assert spills == ("0", "0", "0"), row[0]
            # 256 threads × 128 registers: at least two blocks on every multiprocessor.
            assert 0 < int(row["registers"]) <= 128, row[0]
        machine = struct.unpack_from("<H", cubin, 18)
        assert machine == (EM_CUDA,)


def test_what_was_compiled_is_kept(own_cache, monkeypatch):
    source, defines = VARIANT
    first = compiled(source, defines, 80)
    monkeypatch.delattr(nvrtc, "_compile")
    assert compiled(source, defines, 80) == first
    assert sorted(path.suffix for path in own_cache.iterdir()) == [
        ".cubin",
        ".log",
        ".sha256",
        ".sha256",
    ]


def test_the_key_depends_on_everything_that_the_code_depends_on(folder, monkeypatch):
    source, defines = VARIANT
    keys = {
        cache_key(source, defines, 80, folder),
        cache_key(source, defines, 90, folder),
        cache_key(source, (("ELEMENT", "__half"),), 80, folder),
    }
    (folder / "sum_of_squares.cuh").write_text(
        (folder / "sum_of_squares.cuh").read_text() + "\n// changed\n"
    )
    keys.add(cache_key(source, defines, 80, folder))
    (folder / source).write_text((folder / source).read_text() + "\n// changed\n")
    keys.add(cache_key(source, defines, 80, folder))
    monkeypatch.setattr(nvrtc, "versions", lambda: {"nvrtc": "0.0"})
    keys.add(cache_key(source, defines, 80, folder))
    assert len(keys) == 6


def test_an_error_in_a_source_is_reported_with_the_compilers_words(folder, own_cache):
    (folder / "broken.cu").write_text(
        'extern "C" __global__ void broken(const int a) { undefined_name = a; }'
    )
    with pytest.raises(CompilationFailed, match="undefined_name"):
        compiled("broken.cu", (), 80, folder)
    assert not list(own_cache.iterdir())


@pytest.mark.parametrize("found", [b"code", b"co", b"", b"edoc"])
def test_a_kept_file_is_sound_unless_it_is_damaged_or_without_its_digest(tmp_path, found) -> None:
    file, other = tmp_path / "a.so", tmp_path / "b.so"
    kept_code.keep(file, b"code")
    assert file.read_bytes() == b"code"
    for path in (file, other):
        path.write_bytes(found)
    assert kept_code.sound(file) == (found == b"code") and not kept_code.sound(other)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code").chmod(mode)
    with refused(tmp_path / "code", f"mode {mode:o}", f"chmod -R go-w {tmp_path / 'code'}"):
        paths.code_folder(tmp_path / "code")


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_folder_that_others_may_rename_is_refused(tmp_path: Path, through_a_link: bool) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shared.chmod(0o777)
    code = tmp_path / "link" if through_a_link else shared / "mine" / "code"
    if through_a_link:
        code.symlink_to(shared / "mine")
    with refused(code, f"{shared} may be written by others (mode 777)", code):
        paths.code_folder(code)
    shared.chmod(0o1777)  # as /tmp: there each renames what is his own
    assert paths.code_folder(code) == code
    made = paths.code_folder(tmp_path / "new")
    assert made.stat().st_mode & 0o777 == 0o700  # for this user alone


def test_a_folder_that_others_can_enter_is_searched_whole_and_closed(tmp_path: Path) -> None:
    code, file = tmp_path / "code", tmp_path / "code" / "ab" / "kernel.so"
    file.parent.mkdir(parents=True)
    file.touch()
    for writable in (file, file.parent):
        mode = writable.stat().st_mode
        writable.chmod(mode | 0o020)
        with refused(code, str(writable), f"chmod go-w {writable}"):
            paths.code_folder(code)
        writable.chmod(mode)
    assert paths.code_folder(code).stat().st_mode & 0o777 == 0o700
    file.chmod(0o666)  # nobody reaches it
    assert paths.code_folder(code) == code


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")
@pytest.mark.parametrize(
    ("mode", "foreign"), [(0o755, "."), (0o755, "ab/kernel.so"), (0o700, "ab"), (0o700, "own.so")]
)
def test_code_of_another_user_is_refused(tmp_path: Path, mode: int, foreign: str) -> None:
    code = tmp_path / "code"
    (code / "ab").mkdir(parents=True)
    for name in ("own.so", "ab/kernel.so"):
        (code / name).touch()
    code.chmod(mode)
    os.chown(code / foreign, 12345, -1)
    with refused(code, f"{code / foreign} belongs to user 12345"):
        paths.code_folder(code)


DEVICE = torch.device("cuda", 0)


def missing_nvrtc() -> None:
    raise CompilationFailed("NVRTC cannot be used: no module named cuda")


@pytest.mark.parametrize(
    ("device", "architecture", "replaced", "switch", "reason"),
    [
        (DEVICE, 90, {}, "1", None),
        (torch.device("cpu"), 90, {}, "1", ""),  # nothing to announce
        (DEVICE, 90, {}, "0", "switched off"),
        (DEVICE, 70, {}, "1", "does not compile for sm_70"),
        (DEVICE, 90, {"nvrtc.supported_architectures": missing_nvrtc}, "1", "no module named cuda"),
        (DEVICE, 90, {"headers": lambda name: None}, "1", "CUDA headers (cuda_fp16.h) were not"),
        (DEVICE, 90, {"nvrtc._OPTIONS": {"no_option": 1}}, "1", "no_option"),
    ],
)
def test_why_kernels_do_not_run_is_announced_once(
    device, architecture, replaced, switch, reason, monkeypatch, own_cache
):
    """No CUDA device is needed to tell why one would do without."""
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, switch)
    monkeypatch.setattr(launch, "architecture", lambda device: architecture)
    places = {"headers": "cuda.pathfinder.find_nvidia_header_directory"}
    for name, value in replaced.items():
        place = places.get(name, f"gallery_lib.kernels.runtime.{name}")
        monkeypatch.setattr(place, value)
    for cached in (usage.announce, usage._cannot_compile):
        cached.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        runs = [usage.kernels_run(device) for _ in range(2)]
    for cached in (usage.announce, usage._cannot_compile):
        cached.cache_clear()
    assert runs == [reason is None] * 2
    if reason:
        (warning,) = said
        assert warning.category is usage.KernelsNotUsed and reason in str(warning.message)
        assert "\n" not in str(warning.message)
    else:
        assert not said
