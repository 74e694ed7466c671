"""`gallery bench`: the tasks, one after the other, in every variant that a user could pick.

Every task is written down when it is done, so that an interrupted bench goes on where it was. As
many variants as fit into memory are alive at a time, and the baseline is always among them.
Variants of different groups are compared through their ratios to the baseline, which were measured
independently. A variant that fails stays, with its reason.
"""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gallery_lib import stats, tasks
from gallery_lib.config import BenchConfig, LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.measure.bench.plan import Plan, bench_plan
from gallery_lib.measure.bench.result import Bench, Outcome, Row, read_bench, write_bench
from gallery_lib.measure.comparison import interleaved, pair
from gallery_lib.measure.comparison.interleaved import Measurement, Turns
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.measure.comparison.untimed import UntimedRuns, measured_key
from gallery_lib.system import hardware, paths
from gallery_lib.system.hardware import library_version
from gallery_lib.tasks import memory_estimate

_PEERS_LIBRARIES = ("accelerate", "lightning-fabric", "gallery_lib")
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", *_PEERS_LIBRARIES)


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


def run(
    names: Sequence[str],
    config: BenchConfig,
    *,
    command: Sequence[str] = ("gallery", "bench"),
    done: Callable[[Path, Bench], None] = lambda folder, bench: None,
) -> tuple[Path, Bench]:
    """Measure the tasks `names`, and return the folder and what came out.

    Args:
        names: tasks; all when empty.
        config: options of the bench.
        command: the command line that the result records.
        done: called with the folder and the bench after each task.

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
        bench = dataclasses.replace(bench, tasks={**bench.tasks, name: outcome})
        write_bench(file, bench)
        done(folder, bench)
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
            ):
                ratio = self._ratio(slower, faster)
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

    def _ratio(self, slower: str, faster: str) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`.

        The ratio is direct where both took turns with one another, otherwise through the baseline.
        """
        a, b = self.group_of[slower], self.group_of[faster]
        if slower in b:
            return pair.ratio(b[slower], b[faster])
        first = self.plan.baseline
        return stats.change_of_ratio(
            pair.ratio(a[first], a[slower]), pair.ratio(b[first], b[faster])
        )


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
    """Return how many variants are alive: two on a GPU, elsewhere as many as fit into memory.

    Raises:
        InputError: two do not fit.
    """
    if hardware.gpu_count():
        return 2
    memory_estimate.check(config, 1, compared=2)
    needed = memory_estimate.needed_bytes(config, compared=True)
    return int(memory_estimate.free_bytes() // needed)
