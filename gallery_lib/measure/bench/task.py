"""Measurement of one task in many variants: machine limits, reference, turns, parity, ratios.

The reference is in float64. As many variants as fit into memory are alive at a time, and the
baseline is always among them. Variants of different groups are compared through their ratios to the
baseline, which were measured independently. A variant that fails stays, with its reason. Before the
turns, the mode of torch.compile is found that the best forms of the peers are compiled in.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats, tasks
from gallery_lib.config import LaunchConfig, RooflineConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError, InputError, RunFailed
from gallery_lib.measure.bench.machine_limits import limits_of_whole_machine
from gallery_lib.measure.bench.plan import Plan
from gallery_lib.measure.bench.result import OURS, Outcome, Row
from gallery_lib.measure.comparison import float64_reference, interleaved, second_run
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.gradient_parity import PROBE_BATCHES
from gallery_lib.measure.comparison.measurement import Measurement
from gallery_lib.measure.comparison.pair import parity_of_all, speedup_of_all
from gallery_lib.measure.comparison.plan import Turns, configuration, folders_of_starts
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.measure.comparison.worker import TRAFFIC_FILE
from gallery_lib.measure.profile.roofline import measure as roofline
from gallery_lib.measure.profile.roofline.result import Roofline
from gallery_lib.measure.variants import compile_mode
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate

_LIMITS = "limits of this machine"


def _row(measurement: Measurement, parity: Parity | None, flops: float, traffic: int | None) -> Row:
    results = measurement.results
    seconds = stats.percentiles([step for block in measurement.rounds for step in block])
    samples = results.config["batch_size"] * results.world_size
    return Row(
        reason=None,
        step_seconds=seconds,
        samples_per_second={
            "global": samples / seconds["p50"],
            **{
                name: rate
                for name, rate in results.samples_per_second.items()
                if name in ("sustained", "whole_run")
            },
        },
        sustained=results.sustained,
        startup_seconds=results.startup_seconds,
        peak_memory_bytes=results.peak_memory_bytes,
        flops_per_second=flops / seconds["p50"],
        bytes_per_second=traffic / seconds["p50"] if traffic else None,
        techniques=results.techniques,
        parity=parity.as_json() if parity else None,
    )


class _TaskMeasurement:
    """Measurement of a task: `run` fills `sizes`, `limits`, `rows` and `ratios`."""

    def __init__(self, plan: Plan, folder: Path, label: str) -> None:
        self.plan, self.folder, self.label = plan, folder, label
        self.sizes: dict[str, int] = {}
        self.limits: dict[str, float] = {}
        self.rows: dict[str, Row] = {name: Row(reason) for name, reason in plan.absent.items()}
        self.of_group: dict[str, int] = {}
        self.groups: list[Group] = []
        self.traffic: dict[str, int] = {}  # by amp level
        self.tried_modes: str | None = None
        self.roofline: Roofline | None = None
        self.ratios: list[tuple[str, str, float, float, float]] = []
        self.second_runs: dict[str, Reference] = {}

    def run(self, alive: int | None, *, progress: bool) -> None:
        """Run the reference and all variants, and make a row of each."""
        config, compare = self.plan.config, self.plan.compare
        sized = tasks.with_sizes(config)
        self.sizes = {
            name: getattr(sized, name)
            for name in ("batch_size", "image_size", "sequence_length")
            if getattr(sized, name)
        }
        others = [name for name in self.plan.variants if name != self.plan.baseline]
        together = list(groups(others, alive_at_a_time(config, alive)))
        warmup = max(config.warmup_steps, compare.parity_steps, PROBE_BATCHES)
        turns = Turns(warmup, compare.rounds, compare.block_steps, PROBE_BATCHES)
        exact_config = float64_reference.configuration(
            configuration(config, turns, self.folder / "reference"),
            compare.parity_steps,
            PROBE_BATCHES,
        )
        of_reference = f"{self.label}, {float64_reference.PART}"
        with Progress(enabled=progress) as shown:
            with shown.ticking(f"{self.label}: {_LIMITS}", part=_LIMITS):
                self.limits = limits_of_whole_machine()
            launch = LaunchConfig()
            exact = float64_reference.reference_for(exact_config, launch, shown, of_reference)
            self.find_mode(shown)
            for names in together:
                self.run_group(names, turns, shown)
            if (probe := self.first_probe()) is not None:
                exact = float64_reference.rerun_if_stale(
                    exact, probe, exact_config, launch, shown, of_reference
                )
            again = functools.partial(self.again, turns=turns, progress=shown)
            self.judge(exact, again)
            self.ratios = [
                (slower, faster, ratio.ratio, ratio.low, ratio.high)
                for slower, faster in self.plan.pairs
                if self.comparable(slower, faster, exact, again)
                for ratio in [self.ratio(slower, faster)]
            ]
            if self.plan.roofline and self.rows[OURS].reason is None:
                self.measure_roofline(shown)

    def measure_roofline(self, progress: Progress) -> None:
        """Hold ours against the machine's limits; say so where that fails."""
        asked = RooflineConfig(out=str(self.folder / "roofline"))
        try:
            _, whole = roofline.measure(self.plan.variants[OURS].config, asked, progress=progress)
        except (InputError, RunFailed) as error:
            reason = interleaved.reason_of(error)
            progress.say(f"{self.label}: no roofline. {reason}")
            return
        self.roofline = dataclasses.replace(whole, operations=[])

    def find_mode(self, progress: Progress) -> None:
        """Find the mode of torch.compile for the best forms, where there is a choice."""
        if not self.plan.modes:
            return
        label = f"{self.label}: torch.compile's modes"
        choice = compile_mode.choose(
            self.plan.config, self.plan.modes, self.folder / "modes", progress, label
        )
        self.plan, self.tried_modes = self.plan.with_mode(choice.mode), choice.comparison

    def run_group(self, names: list[str], turns: Turns, progress: Progress) -> None:
        """Run the baseline and the variants `names` in turns, started as often as is asked."""
        number = len(self.groups)
        folder = self.folder / f"group{number + 1}"
        variants = {name: self.plan.variants[name] for name in [self.plan.baseline, *names]}
        starts: list[dict[str, Measurement]] = []
        for run_folder in folders_of_starts(folder, self.plan.compare.starts):
            failed: dict[str, GalleryError] = {}
            starts.append(
                interleaved.take_turns(
                    variants,
                    LaunchConfig(),
                    turns,
                    run_folder,
                    progress,
                    self.label,
                    dropped=failed,
                )
            )
            for name, error in failed.items():
                (run_folder / name).mkdir(parents=True, exist_ok=True)
                (run_folder / name / "failure.txt").write_text(f"{error}\n")
                self.rows[name] = Row(interleaved.reason_of(error))
                del variants[name]
            if self.plan.baseline not in variants:
                break
        self.groups.append(Group(starts))
        for name in variants:
            self.of_group[name] = number
            if (file := folder / name / TRAFFIC_FILE).exists():
                self.traffic[variants[name].config.amp_level] = json.loads(file.read_text())

    def first_probe(self) -> dict[str, Any] | None:
        """Return the probe of the first variant that ran, or None if none did."""
        measurements = (m for group in self.groups for m in group.starts[0].values())
        return next((measurement.probe for measurement in measurements), None)

    def again(self, name: str, *, turns: Turns, progress: Progress) -> Reference:
        """Train a variant a second time, once; return its losses and its probe."""
        if name not in self.second_runs:
            folder, label = self.folder / f"{name}-again", f"{self.label}, {name}"
            self.second_runs[name] = second_run.run(
                self.plan.variants[name], LaunchConfig(), turns, folder, progress, label
            )
        return self.second_runs[name]

    def judge(self, exact: Reference, again: Callable[[str], Reference]) -> None:
        """Make a row for each variant that ran."""
        flops = float(exact.probe["flops"]) / exact.probe["batches"]
        baseline = self.plan.baseline
        for name, number in self.of_group.items():
            group = self.groups[number]
            if baseline not in group:
                self.rows[name] = Row(f"ran, but {baseline}, which it is held against, did not")
                continue
            steps = self.plan.compare.parity_steps
            parity = None if name == baseline else group.parity(baseline, name, exact, steps, again)
            traffic = self.traffic.get(self.plan.variants[name].config.amp_level)
            row = _row(group.first(name), parity, flops, traffic)
            if self.tried_modes is not None and name in self.plan.in_best_mode:
                row = dataclasses.replace(
                    row, techniques={**row.techniques, "modes tried": self.tried_modes}
                )
            self.rows[name] = row

    def ratio(self, slower: str, faster: str) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`.

        The ratio is direct where both took turns with one another, otherwise through the baseline.
        """
        a, b = (self.groups[self.of_group[name]] for name in (slower, faster))
        baseline, confidence = self.plan.baseline, self.plan.compare.confidence
        if slower == baseline or a is b:
            return b.ratio(slower, faster, confidence)
        return stats.change_of_ratio(
            a.ratio(baseline, slower, confidence), b.ratio(baseline, faster, confidence)
        )

    def comparable(
        self, slower: str, faster: str, exact: Reference, again: Callable[[str], Reference]
    ) -> bool:
        """Return whether both variants ran and compute the same training.

        They compute it as the baseline does, or as one another do where the baseline is the odd one
        out.
        """
        if not all(
            name in self.of_group and self.rows[name].reason is None for name in (slower, faster)
        ):
            return False
        if all(self.rows[name].comparable for name in (slower, faster)):
            return True
        if self.plan.baseline in (slower, faster):
            return False
        a, b = (self.groups[self.of_group[name]].starts for name in (slower, faster))
        both = Group(
            [{slower: one[slower], faster: other[faster]} for one, other in zip(a, b, strict=True)]
        )
        return both.parity(slower, faster, exact, self.plan.compare.parity_steps, again).passed


def measure(
    plan: Plan,
    alive: int | None,
    digest: str,
    folder: Path,
    *,
    label: str = "",
    progress: bool = True,
) -> Outcome:
    """Measure a task. Nothing that fails is raised: the reason is part of the outcome.

    `label`, by default the task's name, is what progress calls the task.
    """
    began, date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    task = _TaskMeasurement(plan, folder, label or plan.config.model.rsplit(":", 1)[-1])
    reason: str | None = None
    try:
        task.run(alive, progress=progress)
    except GalleryError as error:
        reason = interleaved.reason_of(error)
        task.rows = {**{name: Row(reason) for name in plan.variants}, **task.rows}
    rows = {name: task.rows[name] for name in plan.order}
    ratios = task.ratios if reason is None else []
    seconds = round(time.monotonic() - began, 1)
    sizes, limits = task.sizes, task.limits
    return Outcome(digest, date, seconds, reason, sizes, limits, rows, ratios, task.roofline)


# --------------------------------------------------------------------------------------------------
# Groups of variants that are alive at the same time: as many as fit into memory.


def groups(names: Sequence[str], alive: int) -> Iterator[list[str]]:
    """Yield the variants but the baseline, in groups that leave room for it among `alive`."""
    for begin in range(0, len(names), alive - 1):
        yield list(names[begin : begin + alive - 1])


def alive_at_a_time(config: TrainConfig, wanted: int | None) -> int:
    """Return how many variants are to be alive; at least two.

    Raises:
        InputError: when not even two fit, or not as many as are wanted.
    """
    if wanted is not None:
        memory_estimate.check(config, 1, compared=wanted)
        return wanted
    if hardware.gpu_count():
        return 2
    memory_estimate.check(config, 1, compared=2)
    return int(memory_estimate.free_bytes() // memory_estimate.needed_bytes(config, compared=True))


@dataclass(frozen=True)
class Group:
    """Measurements of variants that took turns: once, or, started anew, more often.

    Of a variant that failed, nothing is kept.
    """

    starts: Sequence[Mapping[str, Measurement]]

    def __contains__(self, name: str) -> bool:
        return all(name in start for start in self.starts)

    def first(self, name: str) -> Measurement:
        """Return the variant, as it was started first."""
        return self.starts[0][name]

    def ratio(self, slower: str, faster: str, confidence: float) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`."""
        return speedup_of_all([(start[slower], start[faster]) for start in self.starts], confidence)

    def parity(
        self,
        one: str,
        other: str,
        exact: Reference,
        steps: int,
        again: Callable[[str], Reference],
    ) -> Parity:
        """Return the parity of two variants; `again` trains one of them a second time.

        Half precision is compared with fp32, not the other way round.
        """
        if [self.first(name).results.config["amp_level"] for name in (one, other)] == ["O1", "O0"]:
            one, other = other, one
        return parity_of_all(
            [(start[one], start[other]) for start in self.starts],
            exact,
            steps,
            (functools.partial(again, one), functools.partial(again, other)),
        )
