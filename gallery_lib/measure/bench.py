"""`gallery bench`: the tasks, one after the other, in every variant that a user could pick.

The variants of a task (variants.py) have the same weights, batches, loss and optimizer. They differ
in who makes them fast. Alternatively, as a waterfall (ablation), one task runs with one technique
of the backend after another switched on. All variants that are compared have one precision: mixed,
or fp32 where the device would have to emulate bfloat16.

Every task is written down when it is done, so that an interrupted bench goes on where it was. As
many variants as fit into memory are alive at a time, and the baseline is always among them.
Variants of different groups are compared through their ratios to the baseline, which were measured
independently. A variant that fails stays, with its reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats, tasks
from gallery_lib.config import BenchConfig, CompareConfig, LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError, InputError, did_you_mean
from gallery_lib.measure.bench_result import (
    BEST,
    EAGER,
    GRAPHS,
    OURS,
    TURN_ORDER,
    VARIANTS,
    AmpLevel,
    Bench,
    Outcome,
    Row,
    read_bench,
    write_bench,
)
from gallery_lib.measure.comparison import interleaved, pair
from gallery_lib.measure.comparison.interleaved import Measurement, Turns, Variant
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.measure.comparison.untimed import UntimedRuns, measured_key
from gallery_lib.measure.variants import missing, reason_not_applied, variables_of
from gallery_lib.system import hardware, paths
from gallery_lib.system.hardware import library_version
from gallery_lib.system.processes import tell
from gallery_lib.tasks import memory_estimate
from gallery_lib.train import precision

_LIBRARIES = (
    *("torch", "torchvision", "timm", "transformers"),
    *("accelerate", "lightning-fabric", "gallery_lib"),
)
_LARGE_IMAGE, _LONG_SEQUENCE = 224, 128


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
    left_out = {EAGER["O1"], *(() if hardware.device_type() == "cuda" else GRAPHS)}
    names = [name for name in VARIANTS if name not in left_out]
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
    result = options.from_mapping(TrainConfig, train)
    if config.profile == "auto" and config.batch_size is None:
        result = memory_estimate.fitting(result)
    return result, options.from_mapping(CompareConfig, compare)


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
    """Return the plan of a waterfall: each variant adds its techniques to the one before it."""
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


# --------------------------------------------------------------------------------------------------
# The tasks, one after the other


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are measured, by name."""
    return {name: library_version(name) or "not installed" for name in _LIBRARIES}


def digest_of(plan: Plan) -> str:
    """Return a digest of everything that the figures depend on: options, code and machine."""
    variants = {name: dataclasses.asdict(variant) for name, variant in plan.variants.items()}
    turns = dataclasses.asdict(plan.compare)
    return measured_key(plan.config, turns, variants, dict(plan.absent), versions())


def _plans(names: Sequence[str], config: BenchConfig) -> dict[str, Plan]:
    """Return the plan of each task by name; raise InputError where the options make no sense."""
    wanted = list(dict.fromkeys(names)) or tasks.names()
    by_name = {name.rsplit(":", 1)[-1]: bench_plan(name, config) for name in wanted}
    if len(by_name) < len(wanted):
        raise InputError(
            f"two of the tasks {', '.join(wanted)} have the same name: measure them one by one.",
            parameter="names",
        )
    for plan in by_name.values() if names else ():  # of all tasks, one without data keeps a reason
        tasks.data_of(plan.config)
    return by_name


def _half(plan: Plan, config: BenchConfig) -> Plan | None:
    """Return the plan with half the batch, and say so; None where the options name the batch."""
    half = memory_estimate.halved(plan.config)
    if half is None or config.profile != "auto" or config.batch_size is not None:
        return None
    tell(f"{half.model}: the memory of the GPU ran out; again with batch_size={half.batch_size}")
    return bench_plan(half.model, dataclasses.replace(config, batch_size=half.batch_size))


def run(
    names: Sequence[str],
    config: BenchConfig,
    *,
    command: Sequence[str] = ("gallery", "bench"),
    after_task: Callable[[Path, Bench], None] = lambda folder, bench: None,
) -> tuple[Path, Bench]:
    """Measure the tasks `names`, and return the folder and what came out.

    Args:
        names: tasks; all when empty.
        config: options of the bench.
        command: the command line that the result records.
        after_task: called with the folder and the bench after each task.

    Raises:
        InputError: before anything is started, for unknown names, options that make no sense and a
            folder that will not do. Also for data that will not do where tasks are named; without
            names, the task keeps that as its reason.
    """
    config = options.checked(config)
    by_name = _plans(names, config)
    folder = paths.output_folder(
        config.out, "bench", resume=config.resume, file="bench.json", work="bench"
    )
    file = folder / "bench.json"
    earlier = read_bench(file).tasks if config.resume and file.exists() else {}
    conditions = dataclasses.asdict(config)
    del conditions["resume"], conditions["out"]
    facts = (conditions, hardware.machine_facts(), versions())
    bench = Bench("bench", shlex.join(command), *facts, tasks=earlier)
    for number, (name, plan) in enumerate(by_name.items(), 1):
        digest = digest_of(plan)
        kept = earlier.get(name)
        if kept is not None and kept.digest == digest and kept.reason is None:
            continue  # another one failed, or was with other options, code, or on another machine
        label = f"{name} ({number} of {len(by_name)})" if len(by_name) > 1 else name
        run_folder = paths.free_name(folder, name)
        outcome = measure_task(plan, digest, run_folder, label=label)
        while outcome.short_of_gpu_memory and (half := _half(plan, config)):
            plan, run_folder = half, paths.free_name(folder, name)
            outcome = measure_task(plan, digest, run_folder, label=label)
        bench = dataclasses.replace(bench, tasks={**bench.tasks, name: outcome})
        write_bench(file, bench)
        after_task(folder, bench)
    return folder, bench


# --------------------------------------------------------------------------------------------------
# One task: reference, turns, parity, ratios


def _row(measurement: Measurement, parity: Parity | None) -> Row:
    results = measurement.results
    seconds = stats.percentiles([step for block in measurement.rounds for step in block])
    rates = results.samples_per_second
    return Row(
        reason=None,
        step_seconds=seconds,
        samples_per_second={
            "global": results.config["batch_size"] * results.world_size / seconds["p50"],
            **{name: rates[name] for name in ("sustained", "whole_run") if name in rates},
        },
        sustained=results.sustained,
        startup_seconds=results.startup_seconds,
        peak_memory_bytes=results.peak_memory_bytes,
        techniques=results.techniques,
        parity=parity,
        gpu=results.gpu,
    )


class _TaskMeasurement:
    """Measurement of a task: `run` fills `rows` and `ratios`."""

    def __init__(self, plan: Plan, folder: Path, label: str, at_pause: Callable[[], None]) -> None:
        self.plan, self.folder, self.label, self.at_pause = plan, folder, label, at_pause
        self.rows: dict[str, Row] = {name: Row(reason) for name, reason in plan.absent.items()}
        # By variant, the group that it took turns in: variants of it by name.
        self.group_of: dict[str, dict[str, Measurement]] = {}
        self.ratios: list[tuple[str, str, float, float, float]] = []

    def run(self, progress: Progress) -> None:
        """Run the reference and all variants, and make a row of each."""
        plan, baseline = self.plan, self.plan.baseline
        others = [name for name in plan.variants if name != baseline]
        together = list(groups(others, alive_at_a_time(plan.config))) or [[]]
        untimed = UntimedRuns(
            plan.variants, LaunchConfig(), plan.compare, self.folder, progress, self.label
        )
        untimed.reference()
        for number, names in enumerate(together, 1):
            self._run_group(names, self.folder / f"group{number}", progress)
        for name, group in self.group_of.items():
            if baseline not in group:
                self.rows[name] = Row(f"ran, but {baseline}, which it is held against, did not")
                continue
            steps = plan.compare.parity_steps
            held = name != baseline
            judged = pair.parity(group, baseline, name, steps, untimed) if held else None
            self.rows[name] = _row(group[name], judged)
        for slower, faster in plan.pairs:
            if all(
                name in self.group_of and self.rows[name].comparable for name in (slower, faster)
            ) and (ratio := self._ratio(slower, faster)):
                self.ratios.append((slower, faster, ratio.ratio, ratio.low, ratio.high))

    def _run_group(self, names: list[str], folder: Path, progress: Progress) -> None:
        """Run the baseline and the variants `names` in turns."""
        variants = {name: self.plan.variants[name] for name in [self.plan.baseline, *names]}
        turns = Turns.of(self.plan.config, self.plan.compare)
        failed: dict[str, GalleryError] = {}
        measured = interleaved.take_turns(
            *(variants, LaunchConfig(), turns, folder, progress, self.label),
            dropped=failed,
            at_pause=self.at_pause,
        )
        for name, error in failed.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "failure.txt").write_text(f"{error}\n")
            self.rows[name] = Row(interleaved.reason_of(error))
        self.group_of |= dict.fromkeys(measured, measured)

    def _ratio(self, slower: str, faster: str) -> stats.Ratio | None:
        """Return how many times as fast `faster` is as `slower`, or None at other GPU clocks.

        The ratio is direct where both took turns with one another, otherwise through the baseline.
        """
        a, b = self.group_of[slower], self.group_of[faster]
        if slower in b:
            return pair.ratio(b[slower], b[faster])
        first = self.plan.baseline
        before, after = pair.ratio(a[first], a[slower]), pair.ratio(b[first], b[faster])
        return stats.change_of_ratio(before, after) if before and after else None


def measure_task(
    plan: Plan,
    digest: str,
    folder: Path,
    *,
    label: str = "",
    at_pause: Callable[[], None] = lambda: None,
) -> Outcome:
    """Measure a task. Nothing that fails is raised: the reason is part of the outcome.

    `label`, by default the task's name, is what progress calls the task. `at_pause` is called
    before the turns and after each round of them, while all variants wait.
    """
    began, date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    name = label or plan.config.model.rsplit(":", 1)[-1]
    task = _TaskMeasurement(plan, folder, name, at_pause)
    sized, reason = tasks.with_sizes(plan.config), None
    try:
        with Progress() as shown:
            task.run(shown)
    except GalleryError as error:
        reason = interleaved.reason_of(error)
        task.rows = {**{name: Row(reason) for name in plan.variants}, **task.rows}
    names = ("batch_size", "image_size", "sequence_length")
    return Outcome(
        digest,
        date,
        seconds=round(time.monotonic() - began, 1),
        reason=reason,
        sizes={name: size for name in names if (size := getattr(sized, name))},
        rows={name: task.rows[name] for name in plan.order},
        ratios=task.ratios if reason is None else [],
    )


# --------------------------------------------------------------------------------------------------
# Groups of variants that are alive at the same time: as many as fit into memory.


def groups(names: Sequence[str], alive: int) -> Iterator[list[str]]:
    """Yield the variants but the baseline, in groups that leave room for it among `alive`."""
    for begin in range(0, len(names), alive - 1):
        yield list(names[begin : begin + alive - 1])


def alive_at_a_time(config: TrainConfig) -> int:
    """Return how many variants are alive: two on a GPU, elsewhere as many as fit into memory."""
    if hardware.gpu_count():
        return 2
    memory_estimate.check(config, 1, compared=2)
    needed = memory_estimate.needed_bytes(config, compared=True)
    return int(memory_estimate.free_bytes() // needed)
