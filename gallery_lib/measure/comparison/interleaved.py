"""Variants of a run that take turns, so that drift of the machine affects all of them.

First all variants start up (lineup.py). Then come blocks of steps, in the order A B C, C B A,
A B C, …. Last, each variant ends its run, in turn. A variant that fails ends everything, or only
drops out, as the caller asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gallery_lib.config import LaunchConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError
from gallery_lib.measure.comparison.lineup import Lineup
from gallery_lib.measure.comparison.measurement import Measurement
from gallery_lib.measure.comparison.plan import Turns, Variant
from gallery_lib.system import hardware


def take_turns(
    variants: Mapping[str, Variant],
    launch: LaunchConfig,
    turns: Turns,
    folder: Path,
    progress: Progress,
    label: str,
    *,
    dropped: dict[str, GalleryError] | None = None,
    at_pause: Callable[[], None] = lambda: None,
) -> dict[str, Measurement]:
    """Run the variants in turns, each in a run directory of its name below `folder`.

    Args:
        variants: what to run, by name.
        launch: how the processes are started.
        turns: numbers of steps and rounds.
        folder: parent of the run directories.
        progress: where to show what is going on.
        label: name shown before it.
        dropped: where given, receives the variants that fail, with their error, and the others go
            on. Otherwise the error is raised.
        at_pause: called before the first turn and after each round of turns, when every variant
            waits.

    Raises:
        InputError: for options that make no sense.
        RunFailed: when a run fails.
    """
    lineup = Lineup(variants, launch, turns, folder, progress, label, dropped)
    names, at_once = list(variants), hardware.cores()
    try:
        for first in range(0, len(names), at_once):
            lineup.start_up(names[first : first + at_once])
        at_pause()
        for number in range(turns.rounds):
            lineup.take_round(number)
            at_pause()
        return lineup.finish()
    finally:
        lineup.close()


def reason_of(error: GalleryError) -> str:
    """Return the first line of why a variant did not run, without the run's folder."""
    return re.sub(r"^the run in .*?(?: did not finish)?: ", "", str(error).splitlines()[0])
