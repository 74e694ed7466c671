"""Names of a bench's variants: each peer as documented and at its best; the fastest best form.

Needs no torch.
"""

from __future__ import annotations

from gallery_lib.measure.bench.result import EAGER, OURS, Outcome

PEERS = ("torch.compile", "accelerate", "fabric")
"""What a user could pick instead, as it comes."""
_BEST = "-best"
EAGER_BEST = f"eager{_BEST}"
BEST = (*(f"{peer}{_BEST}" for peer in PEERS), EAGER_BEST)
"""The peers, and eager PyTorch, as somebody who tunes by hand uses them (by_hand.py)."""
VARIANTS = (
    *EAGER.values(),
    EAGER_BEST,
    *(name for peer in PEERS for name in (peer, f"{peer}{_BEST}")),
    OURS,
)
"""All variants, in the order of tables."""
TURN_ORDER = (OURS, *BEST, *PEERS, *EAGER.values())
"""All variants, in the order in which they get a place beside the baseline.

What a headline compares is alive at the same time if memory allows.
"""
GROUPS = {"as-it-comes": PEERS, "best": BEST}
"""Words that stand for several variants."""


def plain_name(name: str) -> str:
    """Return a variant's name without the mark of its best form: `fabric` for `fabric-best`."""
    return name.removesuffix(_BEST)


def best_of_others(outcome: Outcome, among: tuple[str, ...] = BEST) -> str | None:
    """Return the variant of `among` that ours has the smallest lead over.

    None comes back if ours has a ratio over none of them. The ratios are those of the turns, in
    which drift of the machine cancels. So no other ratio of ours in the table is smaller.
    """
    ratios = {
        name: ratio.ratio for name in among if (ratio := outcome.ratio(name, OURS)) is not None
    }
    return min(ratios, key=lambda name: ratios[name]) if ratios else None
