"""The switches of the accelerated backend, and what the launcher sets for them."""

import os

import pytest
from refusal import refused

from gallery_lib import memory
from gallery_lib.compiler import compiler_enabled, kernels_enabled
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.launcher.job import environment_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TrainConfig(), (False, False)),
        (TrainConfig(compiler_opt=True), (True, True)),
        (TrainConfig(compiler_opt=True, kernels=False), (True, False)),
        (TrainConfig(compiler_opt=False, kernels=True), (False, False)),
    ],
)
def test_the_answers_come_from_the_configuration_of_the_run(
    config: TrainConfig, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(config, LaunchConfig()).items():
        monkeypatch.setenv(name, value)
    assert (compiler_enabled(), kernels_enabled()) == expected


def test_a_value_that_is_neither_0_nor_1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "yes")
    with refused("GALLERY_COMPILER_OPT", "'yes'"):
        compiler_enabled()


def test_the_baseline_gets_no_allocator_settings_and_threads_are_always_explicit() -> None:
    baseline = environment_of(TrainConfig(), LaunchConfig())
    assert "GLIBC_TUNABLES" not in baseline
    assert int(baseline["OMP_NUM_THREADS"]) >= 1


def test_the_users_own_tunables_win_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := memory.reason_not_applied():
        pytest.skip(f"{reason}; runs on Linux with glibc 2.35 or newer")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2")
    chosen = dict(
        pair.split("=") for pair in memory.allocator_variables()["GLIBC_TUNABLES"].split(":")
    )
    assert chosen["glibc.malloc.hugetlb"] == "0"
    assert chosen["glibc.malloc.arena_max"] == "2"
    assert int(chosen["glibc.malloc.mmap_threshold"]) > 2**30
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0:glibc.malloc.arena_max=2"
