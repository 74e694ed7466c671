"""Which precision is chosen, and the warning about one that will be slow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gallery_lib.config import TrainConfig
from gallery_lib.system import hardware
from gallery_lib.train import precision
from gallery_lib.train.resolved import resolve


@pytest.mark.parametrize(
    ("asked", "device_type", "has_units", "chosen"),
    [
        ("auto", "cpu", True, "O1"),
        ("auto", "cpu", False, "O0"),
        ("O1", "cpu", False, "O1"),
        ("O0", "cuda", True, "O0"),
        ("auto", "cuda", False, "O1"),
    ],
)
def test_auto_is_what_the_device_is_for(
    monkeypatch: pytest.MonkeyPatch, asked: Any, device_type: str, has_units: bool, chosen: str
) -> None:
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    assert precision.chosen_level(asked, device_type) == chosen


@pytest.mark.parametrize(("has_units", "words"), [(True, "bf16 autocast"), (False, "fp32")])
def test_baseline_and_candidate_have_the_precision_of_the_machine_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, has_units: bool, words: str
) -> None:
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    monkeypatch.setattr(hardware, "device_type", lambda: "cpu")

    def level(**options: Any) -> str:
        config = TrainConfig("tts_angular", **options)
        return resolve(config, local_processes=1, run_dir="x").amp_level

    assert level() == level(compiler_opt=True) == ("O1" if has_units else "O0")
    assert (level(amp_level="O0"), level(amp_level="O1")) == ("O0", "O1")
    assert precision.described(TrainConfig(), "cpu") == f"{words} (auto)"
    assert precision.described(TrainConfig(amp_level="O1"), "cpu") == "bf16 autocast"


@pytest.mark.parametrize(
    ("dtype", "has_units", "accelerated", "said"),
    [
        (torch.bfloat16, False, False, True),
        (torch.bfloat16, False, True, False),
        (torch.bfloat16, True, False, False),
        (None, False, False, False),
    ],
)
def test_emulated_bfloat16_is_announced(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype | None,
    has_units: bool,
    accelerated: bool,
    said: bool,
) -> None:
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    notice = precision.notice(dtype, "cpu", accelerated=accelerated)
    assert (notice is not None and "Use --amp_level=O0" in notice) == said
