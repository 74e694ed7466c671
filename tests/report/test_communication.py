"""Figures of communication: their values also stand beside them, and those of a lab say so."""

from __future__ import annotations

import dataclasses

import made_effects
import pytest
from made_effects import effect

from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import PLAIN, Effects
from gallery_lib.report.communication.buckets import buckets, buckets_rows, buckets_text
from gallery_lib.report.communication.bytes_sent import (
    BytesSent,
    bytes_figure,
    bytes_rows,
    bytes_text,
)
from gallery_lib.report.communication.learning import learned, learned_rows, learned_text
from gallery_lib.report.communication.parity import parity_rows
from gallery_lib.report.communication.step_times import (
    _speedup,
    waterfall,
    waterfall_rows,
    waterfall_text,
)


@pytest.fixture
def effects() -> Effects:
    return made_effects.effects()


def test_what_comes_from_a_lab_says_emulated_link_in_title_text_and_table(effects: Effects) -> None:
    assert "emulated link" in waterfall(effects).axes[0].get_title()
    assert "emulated link" in buckets(effects).axes[0].get_title()
    assert "emulated link" in waterfall_text(effects) and "emulated link" in buckets_text(effects)
    for rows in (
        waterfall_rows(effects),
        parity_rows(effects),
        buckets_rows(effects),
    ):
        assert rows[0][0] == "technique (emulated link)"


def test_the_waterfall_gives_time_ratio_and_verdict(effects: Effects) -> None:
    assert waterfall_rows(effects)[1:3] == [
        [PLAIN, "410 ms", "1, by definition", "baseline"],
        ["bf16", "200 ms", _speedup(effects.ways["bf16"]), "faster"],
    ]
    assert "2.0" in _speedup(effects.ways["bf16"])


def test_a_gradient_that_is_not_right_is_seen(effects: Effects) -> None:
    assert [row[-1] for row in parity_rows(effects)[1:]] == [
        "passed",
        "passed",
        "FAILED",
        "not averaged",
    ]
    assert effect("bf16", 0.1, 0.002, same=False).parity == "FAILED: ranks differ"
    assert effect("exact", 0.1, 0.002).parity == "FAILED"


def test_each_bucket_has_its_bar_and_each_technique_its_line(effects: Effects) -> None:
    figure = buckets(effects)
    assert [
        len([p for p in axes.patches if p.get_width() > 0.04 * 1000]) >= 1 for axes in figure.axes
    ] == [True] * 3
    assert buckets_rows(effects)[2] == [
        "bf16",
        "2",
        "1, 3",
        "20.0 ms",
        "30.0 ms",
        "200 ms",
        "170 ms",
    ]


def test_effects_come_back_from_what_was_written(effects: Effects) -> None:
    assert Effects.of(dataclasses.asdict(effects)) == effects


def test_learning_is_shown_with_its_noise() -> None:
    scores = Scores("digits", "held-out accuracy", True, {FP32: [0.93, 0.95], "int8": [0.2, 0.3]})
    figure = learned([scores])
    assert len(figure.axes[0].lines) == 4
    assert "int8 0.250" in learned_text([scores]) and "noise ± 0.028" in learned_text([scores])
    assert learned_rows([scores])[2][-3:] == ["-0.690", "± 0.028", "worse"]


def test_bytes_are_shown_with_the_time_that_the_link_is_busy() -> None:
    counted = BytesSent(
        "resnet50", 25_000_000, 2, 200_000_000, {"fp32": 100 * 2**20, "bf16": 50 * 2**20}
    )
    assert bytes_rows(counted)[2] == ["bf16", "50 MiB", "50.0%", "2.10 s"]
    assert "bf16 50 MiB" in bytes_text(counted) and len(bytes_figure(counted).axes[0].patches) == 2
