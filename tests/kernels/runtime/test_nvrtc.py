"""NVRTC compiles every kernel for every architecture without a GPU.

What it compiled is kept, and no kernel spills registers.
"""

from __future__ import annotations

import itertools
import re
import shutil
import struct

import pytest

from gallery_lib.kernels.runtime import nvrtc
from gallery_lib.kernels.runtime.launch import ELEMENTS
from gallery_lib.kernels.runtime.nvrtc import SOURCES, CompilationFailed, cache_key, compiled

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


OTHERS = [pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES if each != 90]


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [90, *(pytest.param(one, marks=pytest.mark.thorough) for one in OTHERS)]
)
def test_every_kernel_compiles_and_none_spills(architecture):
    if architecture not in nvrtc.supported_architectures():
        pytest.skip(f"NVRTC {nvrtc.versions()['nvrtc']} does not compile for sm_{architecture}")
    sources = sorted(path.name for path in SOURCES.glob("*.cu"))
    for source, defines in itertools.product(sources, ELEMENTS.values()):
        kernels = re.findall(
            r'extern "C" __global__ void .*?(\w+)\(const', (SOURCES / source).read_text()
        )
        code = compiled(source, defines, architecture)
        rows = list(FUNCTION.finditer(code.log))
        assert sorted(row["kernel"] for row in rows) == sorted(kernels), source
        for row in rows:
            assert int(row["architecture"]) == architecture
            spills = (row["stores"], row["loads"], row["stack"])
            assert spills == ("0", "0", "0"), row[0]
            # 256 threads × 128 registers: at least two blocks on every multiprocessor.
            assert 0 < int(row["registers"]) <= 128, row[0]
        machine = struct.unpack_from("<H", code.cubin, 18)
        assert machine == (EM_CUDA,)


def test_what_was_compiled_is_kept(own_cache):
    source, defines = VARIANT
    first, second = compiled(source, defines, 80), compiled(source, defines, 80)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert (first.cubin, first.log) == (second.cubin, second.log)
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
