"""Options of a run that do not go together are refused before anything is started."""

from __future__ import annotations

import pytest
from refusal import refused

from gallery_lib.config import TrainConfig, backend_config
from gallery_lib.train.resolved import resolve


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compiler_opt": False}, "does not compile"),
        ({"compiler_opt": True, "tune": True}, "Leave one of them out"),
    ],
)
def test_a_compiler_in_the_background_needs_a_run_that_compiles_as_it_is(
    options: dict[str, bool], reason: str
) -> None:
    config = TrainConfig(model="resnet18", compile_in_background=True, **options)  # type: ignore[arg-type]
    with refused("compile_in_background", reason):
        resolve(config, local_processes=1, run_dir="run")


def test_a_compiler_in_the_background_reaches_accelerate() -> None:
    for asked in (False, True):
        config = TrainConfig(compiler_opt=True, compile_in_background=asked)
        assert backend_config(config).compiler.background is asked
