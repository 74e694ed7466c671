"""`gallery bench`: the tasks, in every variant that a user could pick, and how this backend does beside them.

The variants of a task have the same weights, batches, loss and optimizer, and differ in who makes them fast. Or, as a waterfall,
one task with one technique of the backend after another switched on. What is held against one another has one precision: mixed, or
fp32 where the device would have to emulate bfloat16. Every task is written down when it is done,
so that an interrupted bench goes on where it was.
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

from gallery_lib import hardware, options, paths, precision, tasks
from gallery_lib.config import BenchConfig, CompareConfig, TrainConfig
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.measure import peers, recipes, reference, task_bench
from gallery_lib.measure.lineup import Variant
from gallery_lib.measure.outcome import EAGER, OURS, AmpLevel, Bench, Outcome, read_bench, write_bench
from gallery_lib.measure.task_bench import Line

VARIANTS = (*EAGER.values(), *peers.PEERS, OURS)
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "accelerate", "lightning-fabric", "gallery_lib")


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def amp_level(asked: BenchConfig) -> AmpLevel:
    """What was asked, or what this device is for."""
    return precision.chosen_level(asked.amp_level, hardware.device_type())


def _settings(name: str, asked: BenchConfig) -> tuple[TrainConfig, CompareConfig]:
    """The options of the baseline's run, and of the turns: the profile's, where nothing else was asked."""
    task = tasks.get(name)
    full = asked.profile == "full" or (asked.profile == "auto" and hardware.device_type() == "cuda")
    values: dict[str, Any] = dict(task.full if full else task.quick)
    given = options.to_mapping(asked)
    del given["amp_level"]
    both = {f.name for cls in (TrainConfig, CompareConfig) for f in dataclasses.fields(cls)}
    values |= {option: value for option, value in given.items() if option in both and value is not None}
    compare = {f.name: values.pop(f.name) for f in dataclasses.fields(CompareConfig) if f.name in values}
    train = options.from_mapping(TrainConfig, {**values, "model": name, "amp_level": amp_level(asked), "evaluate": False})
    return train, options.from_mapping(CompareConfig, compare)


def chosen_variants(asked: BenchConfig) -> list[str]:
    """The variants, the baseline first. Raises InputError for an unknown one."""
    baseline = EAGER[amp_level(asked)]
    if asked.variants is None:  # fp32 is what mixed precision is for; in fp32, emulated bfloat16 is no one's choice
        return [baseline, *(name for name in VARIANTS if name not in (baseline, EAGER["O1"]))]
    given = [word.strip() for word in asked.variants.split(",") if word.strip()]
    for name in given:
        if name not in VARIANTS:
            raise InputError(f"variants: unknown `{name}`.{did_you_mean(name, VARIANTS)} Known: {', '.join(VARIANTS)}.")
    return [baseline, *(name for name in VARIANTS if name in given and name != baseline)]


def bench_line(name: str, asked: BenchConfig) -> Line:
    """The task `name` in the variants that were asked for."""
    config, compare = _settings(name, asked)
    fused = [recipes.FUSED] if asked.fused else []
    everywhere = recipes.environment([])
    known = {
        **{
            eager: Variant(dataclasses.replace(config, amp_level=level), fused, everywhere, counts_traffic=True)
            for level, eager in EAGER.items()
        },
        **{peer: Variant(config, [peer, *fused], everywhere) for peer in peers.PEERS},
        OURS: Variant(dataclasses.replace(config, compiler_opt=True), [], everywhere),
    }
    chosen = chosen_variants(asked)
    absent = {peer: why for peer in peers.PEERS if peer in chosen and (why := peers.missing(peer))}
    variants = {variant: known[variant] for variant in chosen if variant not in absent}
    baseline, *others = variants
    pairs = [(baseline, variant) for variant in others]
    if OURS in variants:
        pairs += [(variant, OURS) for variant in others if variant != OURS]
    return Line(config, compare, variants, absent, pairs, chosen)


def waterfall_line(name: str, asked: BenchConfig) -> Line:
    """The task `name` with one technique after another."""
    config, compare = _settings(name, asked)
    baseline = EAGER[config.amp_level]
    variants = {baseline: Variant(config, [], recipes.environment([]), counts_traffic=True)}
    absent: dict[str, str] = {}
    words: list[str] = []
    for technique in recipes.TECHNIQUES:
        if why := recipes.reason_not_applied(technique, config.amp_level):
            absent[technique] = f"does not apply: {why}"
            continue
        words = [*words, technique]
        variants[technique] = Variant(config, words, recipes.environment(words))
    running = list(variants)[1:]
    pairs = [(baseline, variant) for variant in running] + list(itertools.pairwise(running))
    return Line(config, compare, variants, absent, pairs, [baseline, *recipes.TECHNIQUES])


def _digest(line: Line, alive: int | None) -> str:
    """Of everything that the figures depend on: options, the package's sources, versions, the machine."""
    variants = {name: dataclasses.asdict(variant) for name, variant in line.variants.items()}
    asked = [dataclasses.asdict(line.compare), variants, dict(line.absent), alive]
    facts = [reference.key(line.config, 1), *asked, _versions(), hardware.cores()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _check_data(lines: Sequence[Line], *, all_needed: bool) -> None:
    """InputError where a task has no fit data; unless all are needed, only where none has: the others are measured, with its reason."""
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
    """Measure the tasks `names` (all when empty), or the waterfall; returns the folder and what came out.

    `done` is called after each task. Raises InputError, before anything is started, for unknown names, options that make
    no sense and a folder that will not do; for data that will not do where tasks are named, else the task stays as its reason.
    """
    asked = options.checked(asked)
    kind = "waterfall" if asked.waterfall else "bench"
    if asked.waterfall and (names or asked.variants or asked.fused):
        raise InputError(f"--waterfall {asked.waterfall} takes no other task, no --variants and no --fused.")
    make = waterfall_line if asked.waterfall else bench_line
    wanted = [asked.waterfall] if asked.waterfall else list(dict.fromkeys(names)) or tasks.names()
    lines = {name.rsplit(":", 1)[-1]: make(name, asked) for name in wanted}
    if len(lines) < len(wanted):
        raise InputError(f"two of the tasks {', '.join(wanted)} have the same name: measure them one by one.")
    _check_data(list(lines.values()), all_needed=bool(names) or asked.waterfall is not None)
    folder = paths.output_folder(asked.out, kind, resume=asked.resume, file=f"{kind}.json", work=kind)
    file = folder / f"{kind}.json"
    earlier: dict[str, Outcome] = read_bench(file).tasks if asked.resume and file.exists() else {}
    measured_with = {name: value for name, value in options.to_mapping(asked).items() if name not in ("resume", "out")}
    bench = Bench(kind, shlex.join(command), measured_with, hardware.environment(), _versions(), dict(earlier))
    for name, line in lines.items():
        digest = _digest(line, asked.alive)
        if name in earlier and earlier[name].digest == digest and earlier[name].reason is None:
            continue
        if name in earlier:
            why = "it failed" if earlier[name].digest == digest else "it was with other options, another package, or on another machine"
            print(f"{name} is measured again: the last time {why}.", file=sys.stderr, flush=True)
        outcome = task_bench.measure(line, asked.alive, digest, paths.free_name(folder, name), progress=progress)
        bench = dataclasses.replace(bench, tasks={**bench.tasks, name: outcome})
        write_bench(file, bench)
        done(folder, bench)
    return folder, bench
