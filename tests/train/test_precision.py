"""Which precision is chosen, and the warning about one that will be slow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gallery_lib.system import hardware
from gallery_lib.train import precision


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
