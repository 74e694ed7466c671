"""Communication strategies in turns on a lab: right gradients, and the bytes that were computed.

Fewer bytes are faster. The notebook on communication shows the same, executed by papermill.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from executed_notebook import execute

from gallery_lib.cluster import Lab
from gallery_lib.config import StrategiesConfig
from gallery_lib.measure.communication import strategies
from gallery_lib.measure.communication.launch import run_on_lab
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effects

pytestmark = pytest.mark.cluster
SHORT = StrategiesConfig(width=256, rounds=4, block_steps=2)


def measured(processes: int, rate: str) -> Effects:
    with Lab(2, rate=rate) as lab:
        return Effects.of(run_on_lab(lab, strategies.__name__, SHORT, processes))


@pytest.mark.whole_machine
def test_one_process_on_each_of_two_hosts() -> None:
    effects = measured(1, "50mbit")
    techniques = ["small buckets", "two streams", "bf16", "int8"]
    assert list(effects.ways) == [PLAIN, *techniques, ALONE]
    assert effects.parameters == 4 * (256 * 256 + 256)
    alone = effects.ways.pop(ALONE)
    assert alone.seconds < effects.ways["int8"].seconds and alone.sent_bytes < 20_000
    for name, effect in effects.ways.items():
        assert [len(steps) for steps in effect.rounds] == [SHORT.block_steps] * SHORT.rounds
        assert effect.parity == "passed", (name, effect)
        # Two hosts send each other each gradient once; int8 has scales of 4 bytes, too.
        size = {"exact": 4, "bf16": 2, "int8": 1 + 4 / 256}[effect.options["wire"]]
        computed = size * effects.parameters
        assert computed <= effect.sent_bytes < 1.2 * computed + 20_000, name  # TCP adds to it
    for name in ("bf16", "int8"):
        assert effects.ways[name].ratio.ratio > 1.2, (name, effects.ways[name])


@pytest.mark.whole_machine
def test_two_processes_on_each_of_two_hosts_average_hierarchically_as_well() -> None:
    effects = measured(2, "200mbit")
    assert effects.hosts == "2 hosts × 2 processes"
    hierarchical = effects.ways["hierarchical"]
    assert hierarchical.parity == "passed" and effects.ways["int8"].options["hierarchical"]
    assert hierarchical.sent_bytes < 1.2 * 4 * effects.parameters + 20_000  # as of one process


@pytest.mark.several_cores
def test_the_notebook_measures_the_techniques_on_a_lab(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    small = {"width": 128, "rate": "50mbit", "block_steps": 1, "epochs": 1}
    executed = execute(
        checkout / "notebooks" / "communication.ipynb", tmp_path / "executed", small, kernel
    )
    text, figures = executed.shown()
    assert len(figures) == 1  # of the step times
    assert "emulated link" in figures[0].metadata["image/png"]["alt"]
    assert "**Not measured**" not in text and "FAILED" not in text
    for row in ("DDP", "two streams", "int8", "no communication"):
        assert f"| {row} |" in text
    assert "| int8 | 0." in text
    assert "hierarchical" not in text  # which takes several processes on each host
