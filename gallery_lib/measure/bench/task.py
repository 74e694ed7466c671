"""Measurement of one task in many variants: reference, turns, parity, ratios.

As many variants as fit into memory are alive at a time, and the baseline is always among them.
Variants of different groups are compared through their ratios to the baseline, which were measured
independently. A variant that fails stays, with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gallery_lib import stats, tasks
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError
from gallery_lib.measure.bench.plan import Plan
from gallery_lib.measure.bench.result import Outcome, Row
from gallery_lib.measure.comparison import interleaved
from gallery_lib.measure.comparison.interleaved import Measurement, Turns, folders_of_starts
from gallery_lib.measure.comparison.pair import Group
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.measure.comparison.untimed import UntimedRuns
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate


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
    """Measurement of a task: `run` fills `sizes`, `rows` and `ratios`."""

    def __init__(self, plan: Plan, folder: Path, label: str) -> None:
        self.plan, self.folder, self.label = plan, folder, label
        self.sizes: dict[str, int] = {}
        self.rows: dict[str, Row] = {name: Row(reason) for name, reason in plan.absent.items()}
        self.group_of: dict[str, Group] = {}  # the last one that has the variant
        self.ratios: list[tuple[str, str, float, float, float]] = []

    def run(self, progress: Progress) -> None:
        """Run the reference and all variants, and make a row of each."""
        config, compare = self.plan.config, self.plan.compare
        sized = tasks.with_sizes(config)
        names = ("batch_size", "image_size", "sequence_length")
        self.sizes = {name: size for name in names if (size := getattr(sized, name))}
        others = [name for name in self.plan.variants if name != self.plan.baseline]
        together = list(groups(others, alive_at_a_time(config)))
        untimed = UntimedRuns(
            self.plan.variants, LaunchConfig(), compare, self.folder, progress, self.label
        )
        untimed.reference()
        for number, names_of_group in enumerate(together, 1):
            self._run_group(names_of_group, self.folder / f"group{number}", progress)
        ran = next(iter(self.group_of.items()), None)
        exact = untimed.reference(ran[1].first(ran[0]).probe if ran else None)

        def parity(group: Group, one: str, other: str) -> Parity:
            return group.parity(one, other, exact, compare.parity_steps, untimed.again)

        self._judge(parity)
        for slower, faster in self.plan.pairs:
            if self._comparable(slower, faster, parity):
                ratio = self._ratio(slower, faster)
                self.ratios.append((slower, faster, ratio.ratio, ratio.low, ratio.high))

    def _run_group(self, names: list[str], folder: Path, progress: Progress) -> None:
        """Run the baseline and the variants `names` in turns, started as often as is asked."""
        plan = self.plan
        variants = {name: plan.variants[name] for name in [plan.baseline, *names]}
        turns = Turns.of(plan.config, plan.compare)
        group = Group([])
        for run_folder in folders_of_starts(folder, plan.compare.starts):
            failed: dict[str, GalleryError] = {}
            measured = interleaved.take_turns(
                variants, LaunchConfig(), turns, run_folder, progress, self.label, dropped=failed
            )
            group = Group([*group.starts, measured])
            for name, error in failed.items():
                (run_folder / name).mkdir(parents=True, exist_ok=True)
                (run_folder / name / "failure.txt").write_text(f"{error}\n")
                self.rows[name] = Row(interleaved.reason_of(error))
                del variants[name]
            if plan.baseline not in variants:
                break
        for name in variants:
            self.group_of[name] = group

    def _judge(self, parity: Callable[[Group, str, str], Parity]) -> None:
        """Make a row for each variant that ran."""
        baseline = self.plan.baseline
        for name, group in self.group_of.items():
            if baseline not in group:
                self.rows[name] = Row(f"ran, but {baseline}, which it is held against, did not")
                continue
            judged = None if name == baseline else parity(group, baseline, name)
            self.rows[name] = _row(group.first(name), judged)

    def _ratio(self, slower: str, faster: str) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`.

        The ratio is direct where both took turns with one another, otherwise through the baseline.
        """
        a, b = self.group_of[slower], self.group_of[faster]
        baseline = self.plan.baseline
        if slower == baseline or a is b:
            return b.ratio(slower, faster)
        return stats.change_of_ratio(a.ratio(baseline, slower), b.ratio(baseline, faster))

    def _comparable(
        self, slower: str, faster: str, parity: Callable[[Group, str, str], Parity]
    ) -> bool:
        """Return whether both variants ran and compute the same training.

        They compute it as the baseline does, or as one another do where the baseline is the odd one
        out.
        """
        pair = (slower, faster)
        if not all(name in self.group_of and self.rows[name].reason is None for name in pair):
            return False
        if all(self.rows[name].comparable for name in pair):
            return True
        if self.plan.baseline in pair:
            return False
        starts = zip(*(self.group_of[name].starts for name in pair), strict=True)
        both = Group([{slower: one[slower], faster: other[faster]} for one, other in starts])
        return parity(both, slower, faster).passed


def measure(
    plan: Plan, digest: str, folder: Path, *, label: str = "", progress: bool = True
) -> Outcome:
    """Measure a task. Nothing that fails is raised: the reason is part of the outcome.

    `label`, by default the task's name, is what progress calls the task.
    """
    began, date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    task = _TaskMeasurement(plan, folder, label or plan.config.model.rsplit(":", 1)[-1])
    reason: str | None = None
    try:
        with Progress(enabled=progress) as shown:
            task.run(shown)
    except GalleryError as error:
        reason = interleaved.reason_of(error)
        task.rows = {**{name: Row(reason) for name in plan.variants}, **task.rows}
    return Outcome(
        digest,
        date,
        seconds=round(time.monotonic() - began, 1),
        reason=reason,
        sizes=task.sizes,
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
