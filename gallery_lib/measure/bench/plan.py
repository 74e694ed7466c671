"""Plan of a bench for one task: which variants run, with which options, and which are compared.

The variants of a task (measure/variants.py) have the same weights, batches, loss and optimizer.
They differ in who makes them fast. Alternatively, as a waterfall (ablation), one task runs with one
technique of the backend after another switched on.

All variants that are compared have one precision: mixed, or fp32 where the device would have to
emulate bfloat16.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gallery_lib import tasks
from gallery_lib.config import BenchConfig, CompareConfig, TrainConfig, options
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.measure.bench.result import (
    BEST,
    EAGER,
    OURS,
    TURN_ORDER,
    VARIANTS,
    AmpLevel,
)
from gallery_lib.measure.comparison.interleaved import Variant
from gallery_lib.measure.variants import missing, reason_not_applied, variables_of
from gallery_lib.system import hardware
from gallery_lib.train import precision

_LARGE_IMAGE, _LONG_SEQUENCE = 224, 128
_MOST_WORKERS = 16


@dataclass(frozen=True)
class Plan:
    """Plan for measuring a task, the baseline first."""

    config: TrainConfig
    compare: CompareConfig
    variants: Mapping[str, Variant]
    absent: Mapping[str, str]  # variants that cannot run here, and why
    # Pairs whose ratio is wanted: the slower one, as is hoped, first.
    pairs: Sequence[tuple[str, str]]
    order: Sequence[str]  # of all variants, in the tables

    @property
    def baseline(self) -> str:
        """Return the variant that all are compared with."""
        return self.order[0]


# --------------------------------------------------------------------------------------------------
# What the options of a bench mean


def amp_level(config: BenchConfig) -> AmpLevel:
    """Return the amp level of the options, or else the one that suits this device."""
    return precision.chosen_level(config.amp_level, hardware.device_type())


def variant_names(config: BenchConfig) -> list[str]:
    """Return the variants, the baseline first; raise InputError for an unknown one."""
    baseline = EAGER[amp_level(config)]
    # In O1, fp32 is what mixed precision has to beat; in O0, nobody chooses emulated bfloat16.
    names = [name for name in VARIANTS if name != EAGER["O1"]]
    if config.variants is not None:
        words = [word.strip() for word in config.variants.split(",") if word.strip()]
        for word in words:
            if word not in VARIANTS:
                raise InputError(
                    f"variants: unknown `{word}`.{did_you_mean(word, VARIANTS)} Known: "
                    f"{', '.join(VARIANTS)}.",
                    parameter="variants",
                )
        names = words
    return [baseline, *(name for name in VARIANTS if name in names and name != baseline)]


def _large(task: tasks.Task) -> dict[str, Any]:
    """Return the values of the profile `large`: computing counts for more, turns are few."""
    sizes: dict[str, Any] = {"image_size": _LARGE_IMAGE} if task.image_size else {}
    if task.sequence_length:
        longest = task.full.get("sequence_length", task.sequence_length)
        sizes["sequence_length"] = min(_LONG_SEQUENCE, longest)
    return {**sizes, "rounds": 6, "block_steps": 2}


def _run_options(name: str, config: BenchConfig) -> tuple[TrainConfig, CompareConfig]:
    """Return the options of the baseline's run and of the turns; those given beat the profile's."""
    task = tasks.get(name)
    on_cuda = hardware.device_type() == "cuda"
    full = config.profile == "full" or (config.profile == "auto" and on_cuda)
    values: dict[str, Any] = dict(task.full if full else task.quick)
    if on_cuda:
        # One process reads a few hundred images a second, and a GPU trains on thousands.
        values["workers"] = min(hardware.cores(), _MOST_WORKERS)
    if config.profile == "large":
        values |= _large(task)
    of_run, of_turns = (
        {f.name for f in dataclasses.fields(cls)} for cls in (TrainConfig, CompareConfig)
    )
    own = ("amp_level", "resume")  # of the bench, whatever they are for a run
    for option, value in dataclasses.asdict(config).items():
        if option in of_run | of_turns and option not in own and value is not None:
            values[option] = value
    compare = {option: values.pop(option) for option in of_turns & values.keys()}
    train = {**values, "model": name, "amp_level": amp_level(config), "evaluate": False}
    return options.from_mapping(TrainConfig, train), options.from_mapping(CompareConfig, compare)


# --------------------------------------------------------------------------------------------------
# The plans


def _variant(config: TrainConfig, words: list[str]) -> Variant:
    return Variant(config, words, variables_of(words))


def _every_variant(train: TrainConfig) -> dict[str, Variant]:
    """Return all variants that a bench knows, by name."""
    eager = {
        name: _variant(dataclasses.replace(train, amp_level=level), [])
        for level, name in EAGER.items()
    }
    best = {name: _variant(train, [name]) for name in BEST}
    ours = _variant(dataclasses.replace(train, compiler_opt=True), [])
    return {**eager, **best, OURS: ours}


def bench_plan(name: str, config: BenchConfig) -> Plan:
    """Return the plan for the task `name`, in the variants of the options."""
    train, compare = _run_options(name, config)
    names = variant_names(config)
    absent = {variant: why for variant in BEST if variant in names and (why := missing(variant))}
    baseline, *others = [variant for variant in names if variant not in absent]
    pairs = [(baseline, variant) for variant in others]
    if OURS in others:
        pairs += [(variant, OURS) for variant in others if variant != OURS]
    known = _every_variant(train)
    ordered = [baseline, *sorted(others, key=TURN_ORDER.index)]
    variants = {variant: known[variant] for variant in ordered}
    return Plan(train, compare, variants, absent, pairs, names)


def waterfall_of(
    train: TrainConfig, compare: CompareConfig, added: Mapping[str, Sequence[str]]
) -> Plan:
    """Return the plan of a waterfall: each variant adds techniques to the one before it.

    Args:
        train: options of the run.
        compare: options of the turns.
        added: the techniques that each variant adds, by the variant's name, in order.
    """
    level = precision.chosen_level(train.amp_level, hardware.device_type())
    train, baseline = dataclasses.replace(train, amp_level=level), EAGER[level]
    variants = {baseline: _variant(train, [])}
    absent: dict[str, str] = {}
    words: list[str] = []
    for name, techniques in added.items():
        reasons = {t: reason_not_applied(t, level) for t in techniques}
        applied = [technique for technique, why in reasons.items() if why is None]
        if applied:
            words = [*words, *applied]
            variants[name] = _variant(train, words)
        else:
            why = "; ".join(dict.fromkeys(filter(None, reasons.values())))
            absent[name] = f"does not apply: {why}"
    others = list(variants)[1:]
    pairs = [(baseline, variant) for variant in others] + list(itertools.pairwise(others))
    return Plan(train, compare, variants, absent, pairs, [baseline, *added])
