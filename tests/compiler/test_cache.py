"""Where compiled code is cached, and what becomes of a damaged cache."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gallery_lib.compiler import cache
from gallery_lib.errors import RunFailed
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
