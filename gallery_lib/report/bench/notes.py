"""Notes below the tables of a bench: conditions, and how to read the figures."""

from __future__ import annotations

from gallery_lib.measure.bench.result import Bench
from gallery_lib.measure.variants.forms import BEST
from gallery_lib.report.bench.leads import compared_with
from gallery_lib.system import hardware


def notes(bench: Bench) -> list[str]:
    """Return the notes, a paragraph each."""
    versions = ", ".join(
        f"{name} {number}" for name, number in bench.versions.items() if number != "not installed"
    )
    machine = hardware.describe(bench.environment)
    paragraphs = [
        f"{machine}. Versions: {versions}. Command: `{bench.command}`.",
        "Variants of a task took turns. Intervals are of steady-state steps (bootstrap over "
        "turns); `whole run` counts start-up as well. GB/s: bytes that eager operators move, over "
        "this variant's time; what fuses them moves less and may exceed the limit.",
    ]
    return [*paragraphs, _forms(bench), _parity(bench)] if bench.kind == "bench" else paragraphs


def _forms(bench: Bench) -> str:
    """Return a note on the two forms of a peer: as it comes, and at its best."""
    if not any(name in BEST for name in compared_with(bench)):
        fused = bench.options.get("fused")
        text = "a fused one in every variant" if fused else "torch's as it comes; ours: a fused one"
        return f"Optimizer: {text}."
    return (
        "As it comes: eager and the peers without `-best`, as their documentation shows them. At "
        "its best: with `-best`, as somebody who tunes by hand uses it: torch's fused optimizer "
        "where it has one, channels_last where convolutions gain from it, on a CPU glibc told to "
        "keep large blocks (GLIBC_TUNABLES), and the fastest of the compiler's modes that were "
        "tried. The best of the others is, in each task, the one that ours has the smallest lead "
        "over."
    )


def _parity(bench: Bench) -> str:
    return (
        f"Parity is with {bench.baseline}, held against float64. Two variants have a ratio where "
        "both pass, or, where one of them does not, if they compute the same training as one "
        "another."
    )
