"""Figures of communication say in their titles what came out, and name their bars and marks.

Advice follows from the same data: for a gain, for none, and for wrong gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import made_effects
import pytest
from made_effects import effect

from gallery_lib.measure.communication.bucket_times import Timeline
from gallery_lib.measure.communication.convergence import FP32, WITHOUT_FEEDBACK, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effects
from gallery_lib.report.communication.buckets import (
    buckets,
    buckets_advice,
    buckets_text,
    buckets_title,
)
from gallery_lib.report.communication.bytes_sent import (
    BytesSent,
    bytes_advice,
    bytes_figure,
    bytes_title,
)
from gallery_lib.report.communication.learning import (
    learned,
    learned_text,
    learned_title,
    learning_advice,
)
from gallery_lib.report.communication.parity import parity_advice
from gallery_lib.report.communication.step_times import (
    effects_advice,
    waterfall,
    waterfall_text,
    waterfall_title,
)
from gallery_lib.stats import Ratio

SAME, TWICE = Ratio(1.0, 0.95, 1.05), Ratio(2.0, 1.9, 2.1)


@pytest.fixture
def effects() -> Effects:
    return made_effects.effects()


@pytest.fixture
def measured(effects: Effects) -> Callable[[Mapping[str, Ratio]], Effects]:
    """Return measured(ratios): effects with these techniques, each so much faster than DDP."""
    wires = {"int8": "int8", "bf16": "bf16"}

    def of(ratios: Mapping[str, Ratio]) -> Effects:
        ways = {PLAIN: effects.ways[PLAIN]}
        for name, ratio in ratios.items():
            error = None if name == ALONE else 1e-8
            way = effect(wires.get(name, "exact"), 0.4 / ratio.ratio, error)
            ways[name] = dataclasses.replace(way, ratio=ratio)
        return dataclasses.replace(effects, ways=ways)

    return of


def test_the_title_says_the_networks_part_and_what_gains_of_each_kind(
    measured: Callable[[Mapping[str, Ratio]], Effects],
) -> None:
    both = measured(
        {"two streams": Ratio(1.18, 1.1, 1.2), "bf16": TWICE, "int8": SAME, ALONE: Ratio(4, 3, 5)}
    )
    assert waterfall_title(both).splitlines() == [
        "The network takes 75% of DDP's step; two streams gains 1.18× and bf16 gains 2.00×",
        "2 hosts × 1 processes, emulated link",
    ]
    none = measured({"two streams": SAME, "bf16": SAME, ALONE: SAME})
    assert waterfall_title(none).startswith(
        "The network takes no measurable part of DDP's step; no technique gains\n"
    )


def test_advice_takes_the_fastest_of_each_kind_and_names_what_may_be_as_fast(
    measured: Callable[[Mapping[str, Ratio]], Effects],
) -> None:
    text = effects_advice(
        measured(
            {
                "small buckets": Ratio(1.15, 1.12, 1.2),
                "two streams": Ratio(1.18, 1.1, 1.2),
                "bf16": TWICE,
                "int8": Ratio(1.5, 1.4, 1.6),
                ALONE: Ratio(4, 3, 5),
            }
        )
    )
    assert "Use two streams: 1.18× (1.10 to 1.20) as fast as DDP." in text
    assert "small buckets may be as fast. Only the order of additions changes." in text
    assert "If you accept rounding, use bf16: 2.00× (1.90 to 2.10) as fast as DDP." in text
    assert "int8" not in text
    assert text.endswith(
        "More than 4.00× (3.00 to 5.00) is not to be had: that is a step without any network."
    )


def test_advice_without_a_gain_is_to_keep_ddp_and_to_look_elsewhere(
    measured: Callable[[Mapping[str, Ratio]], Effects],
) -> None:
    slower = Ratio(0.8, 0.7, 0.9)
    text = effects_advice(measured({"two streams": slower, "bf16": SAME, ALONE: SAME}))
    assert "keep DDP as it is." in text and "do not round for nothing." in text
    assert "The network is not the limit here" in text
    assert "Use" not in text and "use bf16" not in text


def test_a_technique_with_wrong_gradients_is_advised_against_however_fast_it_is(
    effects: Effects,
) -> None:
    assert effects.ways["int8"].parity == "FAILED"
    assert "use bf16: " in effects_advice(effects) and "int8" not in effects_advice(effects)
    assert "int8" not in waterfall_title(effects)
    assert parity_advice(effects).startswith(
        "Do not use int8: the gradients are wrong. "
        "Trust the step times of DDP and bf16: the gradients are right. "
    )
    assert "differs by at most 0.20 MiB" in parity_advice(effects)


def test_a_format_without_a_limit_is_judged_by_what_it_learns(effects: Effects) -> None:
    ways = {PLAIN: effects.ways[PLAIN], "PowerSGD": effect("powersgd", 0.2, 0.8)}
    ways = {name: dataclasses.replace(way, sent_bytes=None) for name, way in ways.items()}
    text = parity_advice(dataclasses.replace(effects, ways=ways))
    assert "Judge PowerSGD by what it learns" in text and "Do not use" not in text
    assert "No network card was asked" in text


def test_the_alternative_text_ends_with_what_the_title_says(effects: Effects) -> None:
    for text, title in (
        (waterfall_text(effects), waterfall_title(effects)),
        (buckets_text(effects), buckets_title(effects)),
        (learned_text([scores()]), learned_title(scores())),
    ):
        assert text.endswith(f". {title.splitlines()[0]}.")


def test_bars_of_step_times_and_buckets_have_their_names_beside_them(effects: Effects) -> None:
    axes = waterfall(effects).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *(PLAIN, "bf16, rounds", "int8, rounds", ALONE)
    ]
    assert [text.get_text() for text in axes.texts] == [
        *("410 ms", "200 ms, 2.05×", "100 ms, 4.10×", "50.0 ms, 8.20×")
    ]
    assert [[text.get_text() for text in axes.texts] for axes in buckets(effects).axes] == [
        ["1 MiB", "3 MiB"]
    ] * 3


def with_buckets(effects: Effects, **lines: Timeline) -> Effects:
    ways = {
        name: dataclasses.replace(effects.ways[PLAIN], timeline=line)
        for name, line in {PLAIN: lines.pop("plain"), **lines}.items()
    }
    return dataclasses.replace(effects, ways=ways)


def test_the_wait_for_the_last_bucket_is_in_the_title_and_decides_what_to_do(
    effects: Effects,
) -> None:
    late = Timeline(0.01, 0.3, [(1.0, 0.02, 0.2), (3.0, 0.03, 0.3)])
    sooner = Timeline(0.01, 0.1, [(1.0, 0.02, 0.06), (3.0, 0.03, 0.1)])
    shown = with_buckets(effects, plain=late, bf16=sooner)
    assert buckets_title(shown).splitlines() == [
        "DDP waits 270 ms for its last bucket, bf16 70.0 ms",
        "one step of each, emulated link",
    ]
    assert buckets_advice(shown).startswith("Send fewer bytes, or use a faster link. DDP waits 270")
    least = with_buckets(effects, plain=sooner, bf16=late)
    assert "DDP waits 70.0 ms for its last bucket, no technique less" in buckets_title(least)
    long_backward = Timeline(0.01, 0.5, [(1.0, 0.1, 0.2), (3.0, 0.4, 0.5)])
    assert buckets_advice(with_buckets(effects, plain=long_backward)).startswith("Send earlier")
    hidden = Timeline(0.01, 0.5, [(1.0, 0.1, 0.2), (3.0, 0.4, 0.41)])
    assert buckets_advice(with_buckets(effects, plain=hidden)).startswith("Change nothing: DDP")


def scores(title: str = "digits", **changed: list[float]) -> Scores:
    good = {name: [0.93, 0.95] for name in (FP32, "bf16", "int8", WITHOUT_FEEDBACK)}
    return Scores(title, "held-out accuracy", True, {**good, **changed})


def test_the_title_of_a_training_names_what_learns_less() -> None:
    assert learned_title(scores()) == "digits: every format learns what fp32 learns"
    bad = [0.2, 0.3]
    one = scores(**{WITHOUT_FEEDBACK: bad})
    assert learned_title(one) == "digits: only int8 without error feedback learns less than fp32"
    two = scores(bf16=bad, int8=bad)
    assert learned_title(two) == "digits: only bf16 and int8 learn less than fp32"
    every = scores(bf16=bad, int8=bad, **{WITHOUT_FEEDBACK: bad})
    assert learned_title(every) == "digits: every other format learns less than fp32"


def test_advice_on_formats_follows_from_the_worst_training_of_each() -> None:
    bad = [0.2, 0.3]
    assert learning_advice([scores(), scores(**{WITHOUT_FEEDBACK: bad})]).startswith(
        "Use bf16 or int8 where it is faster: no training here learns less with it. Keep error "
        "feedback on: without it, int8 learns less."
    )
    assert "do not show what it is for" in learning_advice([scores()])
    mixed = learning_advice([scores(), scores(int8=bad)])
    assert mixed.startswith("Use bf16 where") and "Do not use int8: a training here" in mixed
    none = learning_advice([scores(bf16=bad, int8=bad)])
    assert none.startswith("Stay with fp32") and "Use bf16" not in none
    assert "2 seeds" in none


def test_each_seed_of_a_format_has_its_number_and_each_format_its_mean() -> None:
    axes = learned([scores()]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["0", "1"] * 4
    assert axes.get_xticklabels()[1].get_text() == "bf16\nmean 0.940"


def test_bytes_say_what_is_sent_and_when_to_send_fewer() -> None:
    sent = {"fp32": 100 * 2**20, "bf16 or fp16": 50 * 2**20, "PowerSGD": 2**20}
    counted = BytesSent("resnet50", 25_000_000, 2, 200_000_000, sent)
    assert bytes_title(counted) == (
        "resnet50: each of 2 hosts sends 100 MiB a step in fp32, 1.0% of that in PowerSGD"
    )
    advice = bytes_advice(counted)
    assert "a link of 200 Mbit/s is busy for 4.19 s of each step" in advice
    assert advice.endswith("busy for: bf16 or fp16 2.10 s and PowerSGD 41.9 ms.")
    alone = BytesSent("resnet50", 25_000_000, 2, 200_000_000, {"fp32": 100 * 2**20})
    assert bytes_title(alone).endswith("and no format sends less")
    assert "No format sends less" in bytes_advice(alone)
    labels = [text.get_text() for text in bytes_figure(counted).axes[0].texts]
    assert labels == ["100 MiB, 100.0%", "50 MiB, 50.0%", "1 MiB, 1.0%"]
