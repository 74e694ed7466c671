"""Which of the other variants a headline is compared with."""

from __future__ import annotations

from gallery_lib.measure.bench.result import Outcome, Row
from gallery_lib.measure.variants.forms import (
    BEST,
    GROUPS,
    PEERS,
    TURN_ORDER,
    VARIANTS,
    best_of_others,
    plain_name,
)


def outcome(ratios: dict[str, float]) -> Outcome:
    rows = {name: Row(None) for name in VARIANTS}
    return Outcome(
        "d",
        "2026-01-01",
        1.0,
        None,
        {},
        {},
        rows,
        [(name, "ours", r, r * 0.9, r * 1.1) for name, r in ratios.items()],
    )


def test_the_best_of_the_others_is_the_one_that_ours_has_the_smallest_lead_over() -> None:
    leads = {
        "torch.compile-best": 1.2,
        "accelerate-best": 1.15,
        "fabric-best": 1.3,
        "eager-best": 1.4,
        "torch.compile": 1.1,
    }
    assert best_of_others(outcome(leads)) == "accelerate-best"
    assert best_of_others(outcome(leads), PEERS) == "torch.compile"


def test_eager_counts_too_where_it_is_faster_than_what_is_compiled() -> None:
    assert best_of_others(outcome({"torch.compile-best": 1.2, "eager-best": 0.9})) == "eager-best"


def test_what_lacks_parity_or_did_not_run_has_no_ratio_and_is_never_the_best() -> None:
    assert best_of_others(outcome({"fabric-best": 1.5})) == "fabric-best"
    assert best_of_others(outcome({"eager-O1": 1.5})) is None


def test_each_variant_has_a_place_in_the_tables_and_in_the_turns_and_what_is_compared_takes_turns_together() -> (  # noqa: E501
    None
):
    assert sorted(VARIANTS) == sorted(TURN_ORDER) and len(set(VARIANTS)) == len(VARIANTS)
    assert set(TURN_ORDER[: 1 + len(BEST)]) == {"ours", *BEST}
    assert set(GROUPS["as-it-comes"]) == {plain_name(name) for name in BEST} - {"eager"}
