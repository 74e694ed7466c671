"""Search for torch.compile's fastest mode for a task on this machine: measured once, then kept.

`torch.compile-best` takes turns with itself in another mode for a few steps. A mode that fails is
dropped with the reason. So is a mode other than the default whose start-up takes too long. The
default mode stays unless another is faster by more than noise. The choice is kept in the cache
folder for the same options, code, versions and machine. Delete the file to have it measured anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gallery_lib import stats
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.console.table import seconds
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.measure.comparison import interleaved
from gallery_lib.measure.comparison.plan import Turns, Variant
from gallery_lib.measure.comparison.untimed import measured_key
from gallery_lib.measure.variants.peers import DEFAULT_MODE
from gallery_lib.system import paths
from gallery_lib.system.json_files import read_json, set_aside, write_json

START_UP_LIMIT_SECONDS = 300.0
"""Longest start-up of a mode other than the default.

The default takes 15 to 90 s on two cores when a model is compiled for the first time.
"""
LEAST_GAIN = 1.02
"""Speed that another mode must reach relative to the default; less is noise of these few steps."""
TURNS = Turns(warmup_steps=4, rounds=4, block_steps=4, probe_batches=1)


@dataclass(frozen=True)
class Choice:
    """The mode to use, and what was measured of each mode.

    An example of `comparison`: `default 210.0 ms, max-autotune 205.0 ms (1.01 times as fast)`.
    """

    mode: str
    comparison: str


def decide(measured: Mapping[str, list[list[float]]], dropped: Mapping[str, str]) -> Choice:
    """Return the choice among the modes of `measured`.

    Args:
        measured: step times in seconds by turn, of each mode.
        dropped: why the other modes have none.
    """
    first = next(iter(measured), DEFAULT_MODE)  # the default mode, unless it was dropped
    best, gain, texts = first, LEAST_GAIN, []
    for mode, rounds in measured.items():
        text = (
            f"{mode} "
            f"{seconds(stats.percentiles([step for block in rounds for step in block])['p50'])}"
        )
        if mode != first:
            ratio = stats.ratio_of_medians(measured[first], rounds).ratio
            text += f" ({ratio:.2f} times as fast)"
            best, gain = (mode, ratio) if ratio >= gain else (best, gain)
        texts.append(text)
    texts += [f"{mode} dropped: {reason}" for mode, reason in dropped.items()]
    return Choice(best, ", ".join(texts))


def _kept(path: Path, modes: Mapping[str, Variant]) -> Choice | None:
    """Return the choice of an earlier bench, or None.

    A damaged one is set aside and counts as none.
    """
    try:
        choice = read_json(path, Choice, again="")
        if choice.mode not in modes:
            raise InputError(f"unknown mode {choice.mode!r}", parameter="mode")
        return choice
    except FileNotFoundError:
        return None
    except InputError as error:
        set_aside(path, error)
        return None


def _path(config: TrainConfig, modes: Mapping[str, Variant]) -> Path:
    words = {mode: [list(one.recipe), dict(one.environment)] for mode, one in modes.items()}
    asked = [config.amp_level, config.amp_dtype, config.threads, config.workers]
    key = measured_key(config, words, asked, dataclasses.astuple(TURNS), START_UP_LIMIT_SECONDS)
    return paths.cache_dir() / "compile_modes" / f"{key}.json"


def choose(
    config: TrainConfig, modes: Mapping[str, Variant], folder: Path, progress: Progress, label: str
) -> Choice:
    """Return the kept choice among `modes`, or measure now, with runs in `folder`.

    A new choice is kept if some mode could be measured.
    """
    path = _path(config, modes)
    if kept := _kept(path, modes):
        return kept
    limits = {mode: None if mode == DEFAULT_MODE else START_UP_LIMIT_SECONDS for mode in modes}
    limited = {
        mode: dataclasses.replace(variant, start_up_limit_seconds=limits[mode])
        for mode, variant in modes.items()
    }
    failed: dict[str, GalleryError] = {}
    measurements = interleaved.take_turns(
        limited, LaunchConfig(), TURNS, folder, progress, label, dropped=failed
    )
    rounds = {mode: measurements[mode].rounds for mode in modes if mode in measurements}
    choice = decide(rounds, {mode: interleaved.reason_of(error) for mode, error in failed.items()})
    if measurements:
        # If the cache cannot be written, the next bench measures again.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, dataclasses.asdict(choice))
    return choice
