"""Parts of sentences that reports make from measured data."""

from __future__ import annotations

from collections.abc import Iterable


def sentence(title: str) -> str:
    """Return the first line of a figure's title, which says what came out, as a sentence."""
    return title.splitlines()[0] + "."


def listed(names: Iterable[str], last: str = "and") -> str:
    """Return the names as one lists them in a sentence: `bf16, fp16 and int8`.

    Args:
        names: the names, in the order of the sentence.
        last: the word before the last name.
    """
    *others, end = [*names] or [""]
    return f"{', '.join(others)} {last} {end}" if others else end
