"""References, turns and the process spread: parts of a comparison that have a door of their own."""

import contextlib
import dataclasses
import math
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from made_comparison import results
from tiny_task import config

import gallery_lib
from gallery_lib import memory
from gallery_lib.config import CompareConfig, LaunchConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import RunFailed
from gallery_lib.measure.comparison import pair as verdicts
from gallery_lib.measure.comparison import untimed
from gallery_lib.measure.comparison.interleaved import Variant
from gallery_lib.measure.comparison.untimed import Untimed, UntimedRuns
from gallery_lib.measure.comparison.worker import TurnClient, TurnServer

GIVES_BACK = """
import torch
from gallery_lib.train.session import StepClock

clock = StepClock("cpu")
clock.start()
for _ in range(6):
    block = torch.ones(16 * 2**20)  # 64 MiB: glibc maps it anew each time
    del block
    clock.step_done()
print(clock.page_faults[-1])
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "references"


def runs(folder: Path, **changes: Any) -> UntimedRuns:
    """Return the runs of a comparison whose baseline has these options."""
    variants, turns = {"a": Variant(config(**changes))}, CompareConfig(parity_steps=2)
    return UntimedRuns(variants, LaunchConfig(), turns, folder, Progress(enabled=False), "tiny")


@pytest.mark.slow
def test_a_reference_is_kept_for_the_same_options_and_not_for_others(
    tmp_path: Path, cache: Path
) -> None:
    made = runs(tmp_path).reference()
    assert not (tmp_path / "reference").exists() and not made.kept
    assert made.probe["batches"] == 4 == len(made.losses)
    assert all(len(norms) == 4 for norms in made.probe["square_norms"].values())
    assert runs(tmp_path).reference() == dataclasses.replace(made, kept=True)
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), b"no reference"):
        file.write_bytes(damaged)
        assert untimed.kept_reference(file) is None
    changes: tuple[dict[str, Any], ...] = ({}, {"seed": 1}, {"batch_size": 4}, {"lr": 0.5})
    configs = [untimed.reference_config(config(**changed), 2) for changed in changes]
    assert len({untimed.reference_file(options, 1) for options in configs}) == 4


def test_a_reference_depends_on_the_code_that_trains_and_a_figure_on_all_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_lib, "__file__", str(tmp_path / "__init__.py"))
    references, figures = [], []
    unet, dropout = "tasks/pytorch_unet.py", "tune/choice.py"
    for file in (unet, unet, dropout, "report/chart.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"# {len(figures)}")
        references.append(untimed.reference_file(config(), 1))
        figures.append(untimed.measured_key(config()))
    assert len(set(references[:3])) == 3 == len(set(references)) and len(set(figures)) == 4


def test_a_kept_reference_of_other_weights_or_batches_is_run_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {"weights": "w", "first_batches": ["a", "b"]}
    kept, new = Untimed([1.0], start, kept=True), Untimed([2.0], start)
    monkeypatch.setattr(untimed, "kept_reference", lambda *_: kept)
    monkeypatch.setattr(UntimedRuns, "_run", lambda *_: new)
    for probe, expected in (
        (None, kept),
        (start | {"first_batches": ["a", "b", "c"]}, kept),
        (start | {"weights": "v"}, new),
        (start | {"first_batches": ["a", "c"]}, new),
    ):
        of_comparison = runs(tmp_path)
        assert of_comparison.reference() is kept and of_comparison.reference(probe) is expected
    monkeypatch.setattr(UntimedRuns, "_run", None)  # one comparison runs its own once at most
    assert of_comparison.reference({"weights": "x", "first_batches": []}) is new


def test_each_rank_of_a_run_waits_for_the_runs_turn() -> None:
    server = TurnServer()
    taken: list[str] = []

    def train(name: str) -> None:
        client = TurnClient(server.address, name)
        for _ in range(2):
            client.wait()
            taken.append(name)

    counts = {"a": 1, "b": 2}
    with ThreadPoolExecutor() as pool, contextlib.closing(server):  # else a failure would hang
        ranks = [pool.submit(train, name) for name in ("a", "b", "b")]
        for name, count in counts.items():
            server.wait_idle(name, count, lambda: None)
        for name, expected in (("b", ["b", "b"]), ("a", ["b", "b", "a"])):
            server.go(name)
            server.wait_idle(name, counts[name], lambda: None)
            assert taken == expected
        server.go("a")
        server.go("b")
        assert [rank.result(5) for rank in ranks] == [None] * 3
    assert sorted(taken[3:]) == ["a", "b", "b"]


def test_the_socket_of_turns_lies_in_a_folder_of_ours_alone_and_goes() -> None:
    server = TurnServer()
    folder, client = Path(server.address).parent, TurnClient(server.address, "a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.wait_idle("", 0, lambda: None)
    server.close()
    assert not folder.exists()
    with pytest.raises(RunFailed, match="hands out turns is gone"):
        client.wait()


def test_page_faults_make_processes_unlike_but_those_that_were_told_to_keep_their_memory() -> None:
    few = dataclasses.replace(results(0.04), page_faults=20.0)
    many = dataclasses.replace(few, page_faults=4400.0)
    longer = dataclasses.replace(results(4.0), page_faults=4400.0)  # the same ones matter less
    keeps = dataclasses.replace(few, techniques={"allocator": memory.KEEPS})
    alike, unlike = 0.004, 0.05
    for pair, parts in [
        ((few, few), (alike, alike)),
        ((longer, few), (alike, alike)),
        ((few, keeps), (alike, alike)),
        ((many, keeps), (unlike, alike)),
        ((many, many), (unlike, unlike)),
        ((many, few), (unlike, unlike)),  # the other was lucky
    ]:
        assert verdicts.process_spread(*pair) == pytest.approx(math.hypot(*parts))


@pytest.mark.slow
@pytest.mark.skipif(
    memory.reason_not_applied() is not None,
    reason="needs glibc 2.35 or newer, without another allocator preloaded",
)
def test_a_process_that_keeps_large_blocks_has_no_page_faults_and_another_has() -> None:
    def faults(environment: dict[str, str]) -> int:
        words, variables = [sys.executable, "-c", GIVES_BACK], {**os.environ, **environment}
        return int(subprocess.run(words, env=variables, capture_output=True, check=True).stdout)

    assert faults(memory.allocator_variables()) < 100
    assert faults({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}) >= 16_000
