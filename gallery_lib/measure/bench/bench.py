"""`gallery bench`: the tasks in every variant that a user could pick, with this backend among them.

The variants of a task (measure/variants/) have the same weights, batches, loss and optimizer. They
differ in who makes them fast. Peers are there as their documentation shows them, and at their best,
as somebody who tunes by hand uses them. Alternatively, as a waterfall (ablation), one task runs
with one technique of the backend after another switched on.

All variants that are compared have one precision: mixed, or fp32 where the device would have to
emulate bfloat16. Every task is written down when it is done, so that an interrupted bench goes on
where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gallery_lib import tasks
from gallery_lib.config import BenchConfig, CompareConfig, TrainConfig, options
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.measure.bench import task as task_bench
from gallery_lib.measure.bench.result import (
    EAGER,
    OURS,
    AmpLevel,
    Bench,
    Outcome,
    read_bench,
    write_bench,
)
from gallery_lib.measure.bench.task import Line
from gallery_lib.measure.comparison import float64_reference
from gallery_lib.measure.comparison.interleaved import Variant
from gallery_lib.measure.variants import by_hand, forms, peers, recipes
from gallery_lib.measure.variants.forms import BEST, EAGER_BEST, GROUPS, PEERS, TURN_ORDER, VARIANTS
from gallery_lib.system import hardware, paths
from gallery_lib.train import precision

_LARGE_IMAGE, _LONG_SEQUENCE = 224, 128
_LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "accelerate",
    "lightning-fabric",
    "gallery_lib",
)


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def amp_level(asked: BenchConfig) -> AmpLevel:
    """Return the amp level that was asked for, or else the one that suits this device."""
    return precision.chosen_level(asked.amp_level, hardware.device_type())


def _large(task: tasks.Task) -> dict[str, Any]:
    """Return the values of the profile `large` that differ from `quick`.

    They are a size at which computing counts for more, and turns that a few cores can do.
    """
    sizes: dict[str, Any] = {}
    if task.image_size:
        sizes["image_size"] = _LARGE_IMAGE
    if task.sequence_length:
        sizes["sequence_length"] = min(
            _LONG_SEQUENCE, task.full.get("sequence_length", task.sequence_length)
        )
    return {**sizes, "rounds": 6, "block_steps": 2}


def _settings(name: str, asked: BenchConfig) -> tuple[TrainConfig, CompareConfig]:
    """Return the options of the baseline's run, and those of the turns.

    The profile's values apply where nothing else was asked.
    """
    task = tasks.get(name)
    full = asked.profile == "full" or (asked.profile == "auto" and hardware.device_type() == "cuda")
    values: dict[str, Any] = dict(task.full if full else task.quick)
    if asked.profile == "large":
        values |= _large(task)
    given = options.to_mapping(asked)
    del given["amp_level"]
    both = {f.name for cls in (TrainConfig, CompareConfig) for f in dataclasses.fields(cls)}
    values |= {
        option: value for option, value in given.items() if option in both and value is not None
    }
    compare = {
        f.name: values.pop(f.name) for f in dataclasses.fields(CompareConfig) if f.name in values
    }
    train = options.from_mapping(
        TrainConfig, {**values, "model": name, "amp_level": amp_level(asked), "evaluate": False}
    )
    return train, options.from_mapping(CompareConfig, compare)


def chosen_variants(asked: BenchConfig) -> list[str]:
    """Return the variants, the baseline first. Raises InputError for an unknown one."""
    baseline = EAGER[amp_level(asked)]
    # In O1, fp32 is what mixed precision has to beat; in O0, nobody chooses emulated bfloat16.
    if asked.variants is None:
        return [baseline, *(name for name in VARIANTS if name not in (baseline, EAGER["O1"]))]
    known = (*GROUPS, *VARIANTS)
    given: list[str] = []
    for name in _words(asked.variants):
        if name not in known:
            raise InputError(
                f"variants: unknown `{name}`.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
        given += GROUPS.get(name, (name,))
    return [baseline, *(name for name in VARIANTS if name in given and name != baseline)]


def _words(text: str) -> list[str]:
    """Return the words of an option that takes several, with commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen_modes(asked: BenchConfig) -> tuple[str, ...]:
    """Return the modes of torch.compile that the best forms choose from.

    Raises InputError for an unknown mode, or none at all.
    """
    known = by_hand.MODES[hardware.device_type()]
    if asked.peer_modes is None:
        return known
    given = _words(asked.peer_modes)
    for name in given:
        if name not in known:
            raise InputError(
                f"peer_modes: unknown `{name}`.{did_you_mean(name, known)} "
                f"Known on this device: {', '.join(known)}."
            )
    if not given:
        raise InputError(f"peer_modes names no mode. Known on this device: {', '.join(known)}.")
    return tuple(name for name in known if name in given)


def bench_line(name: str, asked: BenchConfig) -> Line:
    """Return the plan for the task `name`, in the variants that were asked for."""
    config, compare = _settings(name, asked)
    modes = chosen_modes(asked)
    known = {
        eager: _variant(dataclasses.replace(config, amp_level=level), [], counts_traffic=True)
        for level, eager in EAGER.items()
    }
    known |= {peer: _variant(config, [peer]) for peer in PEERS}
    known |= {
        best: _variant(config, recipes.best_form(forms.plain_name(best), modes[0])) for best in BEST
    }
    known[OURS] = _variant(dataclasses.replace(config, compiler_opt=True), [])
    chosen = chosen_variants(asked)
    peers_of = {variant: forms.plain_name(variant) for variant in (*PEERS, *BEST)}
    absent = {
        variant: why
        for variant, peer in peers_of.items()
        if variant in chosen and (why := peers.missing(peer))
    }
    baseline, *others = [variant for variant in chosen if variant not in absent]
    pairs = [(baseline, variant) for variant in others]
    if OURS in others:
        pairs += [(variant, OURS) for variant in others if variant != OURS]
    running = {
        variant: known[variant] for variant in [baseline, *sorted(others, key=TURN_ORDER.index)]
    }
    compiled = [variant for variant in running if variant in BEST and variant != EAGER_BEST]
    tried = (
        {mode: _variant(config, recipes.best_form("torch.compile", mode)) for mode in modes}
        if compiled and len(modes) > 1
        else {}
    )
    return Line(config, compare, running, absent, pairs, chosen, tried, compiled)


def _variant(config: TrainConfig, words: list[str], *, counts_traffic: bool = False) -> Variant:
    """Return the variant that the words of a recipe make of a run's options."""
    return Variant(config, words, recipes.environment(words), counts_traffic)


def waterfall_line(name: str, asked: BenchConfig) -> Line:
    """Return the plan for the task `name`, with one technique after another."""
    config, compare = _settings(name, asked)
    baseline = EAGER[config.amp_level]
    running = {baseline: _variant(config, [], counts_traffic=True)}
    absent: dict[str, str] = {}
    words: list[str] = []
    for technique in recipes.TECHNIQUES:
        if why := recipes.reason_not_applied(technique, config.amp_level):
            absent[technique] = f"does not apply: {why}"
            continue
        words = [*words, technique]
        running[technique] = _variant(config, words)
    others = list(running)[1:]
    pairs = [(baseline, variant) for variant in others] + list(itertools.pairwise(others))
    return Line(config, compare, running, absent, pairs, [baseline, *recipes.TECHNIQUES])


def _digest(line: Line, alive: int | None) -> str:
    """Return a digest of everything that the figures depend on.

    These are the options, the package's sources, the versions and the machine.
    """
    running = {name: dataclasses.asdict(variant) for name, variant in line.variants.items()}
    asked = [dataclasses.asdict(line.compare), running, list(line.modes), dict(line.absent), alive]
    facts = [float64_reference.key(line.config, 1), *asked, _versions(), hardware.cores()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _check_data(lines: Sequence[Line], *, all_needed: bool) -> None:
    """Raise InputError where a task has no fit data.

    With `all_needed`, one such task is enough. Otherwise it is raised only if no task has fit data.
    In the other cases the tasks with data are measured, and the others keep the reason.
    """
    errors = []
    for line in lines:
        try:
            tasks.data_of(line.config)
        except InputError as error:
            errors.append(error)
    if errors and (all_needed or len(errors) == len(lines)):
        raise errors[0]


def run(
    names: Sequence[str],
    asked: BenchConfig,
    *,
    command: Sequence[str] = ("gallery", "bench"),
    done: Callable[[Path, Bench], None] = lambda folder, bench: None,
    progress: bool = True,
) -> tuple[Path, Bench]:
    """Measure the tasks `names`, or the waterfall, and return the folder and what came out.

    Args:
        names: tasks; all when empty.
        asked: options of the bench.
        command: the command line that the result records.
        done: called with the folder and the bench after each task.
        progress: whether progress is shown.

    Raises:
        InputError: before anything is started, for unknown names, options that make no sense and a
            folder that will not do. Also for data that will not do where tasks are named; without
            names, the task keeps that as its reason.
    """
    asked = options.checked(asked)
    kind = "waterfall" if asked.waterfall else "bench"
    if asked.waterfall and (names or asked.variants or asked.peer_modes):
        raise InputError(
            f"--waterfall {asked.waterfall} takes no other task, no --variants and no --peer_modes."
        )
    make = waterfall_line if asked.waterfall else bench_line
    wanted = [asked.waterfall] if asked.waterfall else list(dict.fromkeys(names)) or tasks.names()
    lines = {name.rsplit(":", 1)[-1]: make(name, asked) for name in wanted}
    if len(lines) < len(wanted):
        raise InputError(
            f"two of the tasks {', '.join(wanted)} have the same name: measure them one by one."
        )
    _check_data(list(lines.values()), all_needed=bool(names) or asked.waterfall is not None)
    folder = paths.output_folder(
        asked.out, kind, resume=asked.resume, file=f"{kind}.json", work=kind
    )
    file = folder / f"{kind}.json"
    earlier: dict[str, Outcome] = read_bench(file).tasks if asked.resume and file.exists() else {}
    measured_with = {
        name: value
        for name, value in options.to_mapping(asked).items()
        if name not in ("resume", "out")
    }
    bench = Bench(
        kind, shlex.join(command), measured_with, hardware.environment(), _versions(), dict(earlier)
    )
    for number, (name, line) in enumerate(lines.items(), 1):
        digest = _digest(line, asked.alive)
        if name in earlier and earlier[name].digest == digest and earlier[name].reason is None:
            continue
        if name in earlier:
            why = (
                "it failed"
                if earlier[name].digest == digest
                else "it was with other options, another package, or on another machine"
            )
            print(f"{name} is measured again: the last time {why}.", file=sys.stderr, flush=True)
        label = f"{name} ({number} of {len(lines)})" if len(lines) > 1 else name
        outcome = task_bench.measure(
            line, asked.alive, digest, paths.free_name(folder, name), label=label, progress=progress
        )
        bench = dataclasses.replace(bench, tasks={**bench.tasks, name: outcome})
        write_bench(file, bench)
        done(folder, bench)
    return folder, bench
