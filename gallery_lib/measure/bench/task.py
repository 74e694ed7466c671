"""Measurement of one task in many variants: machine limits, reference, turns, parity, ratios.

The reference is in float64. As many variants as fit into memory are alive at a time, and the
baseline is always among them. Variants of different groups are compared through their ratios to the
baseline, which were measured independently. A variant that fails stays, with its reason. Before the
turns, the mode of torch.compile is found that the best forms of the peers are compiled in.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gallery_lib import stats, tasks
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError
from gallery_lib.measure.bench.machine_limits import measure_limits
from gallery_lib.measure.bench.result import Outcome, Row
from gallery_lib.measure.comparison import float64_reference, interleaved, parity
from gallery_lib.measure.comparison.compare import judge_all, speedup_of_all
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.interleaved import Measured, Turns, Variant
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.measure.comparison.worker import TRAFFIC_FILE
from gallery_lib.measure.variants import compile_mode, recipes
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate


@dataclass(frozen=True)
class Line:
    """Plan for measuring a task, the baseline first.

    `absent` are variants that cannot run here, and why.
    """

    config: TrainConfig
    compare: CompareConfig
    variants: Mapping[str, Variant]
    absent: Mapping[str, str]
    # Pairs whose ratio is wanted: the slower one, as is hoped, first.
    pairs: Sequence[tuple[str, str]]
    order: Sequence[str]  # of all variants, in the tables
    # Modes of torch.compile to be tried first; none: nothing is to be found out.
    modes: Mapping[str, Variant] = field(default_factory=dict)
    in_best_mode: Sequence[str] = ()  # variants that are compiled in the fastest of them

    @property
    def baseline(self) -> str:
        """Return the variant that all are compared with."""
        return self.order[0]


def machine_limits() -> dict[str, float]:
    """Measure the limits of this machine now: FLOP/s by dtype, and `copy` in bytes/s.

    FLOP/s are those of matrix products. The limits are those of the whole machine or of the first
    GPU.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(hardware.cores())
    try:
        limits = measure_limits(torch.device(hardware.device_type()))
    finally:
        torch.set_num_threads(before)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return {**limits.matmul_flops_per_second, "copy": limits.copy_bytes_per_second}


def in_mode(line: Line, choice: compile_mode.Choice) -> Line:
    """Return `line` with the best forms compiled in the mode of `choice`."""
    variants = {
        name: dataclasses.replace(variant, recipe=recipes.best_form(variant.recipe[0], choice.mode))
        if name in line.in_best_mode
        else variant
        for name, variant in line.variants.items()
    }
    return dataclasses.replace(line, variants=variants)


def groups(names: Sequence[str], alive: int) -> Iterator[list[str]]:
    """Yield the variants but the baseline, in groups that leave room for it among `alive`."""
    for begin in range(0, len(names), alive - 1):
        yield list(names[begin : begin + alive - 1])


def alive_at_a_time(config: TrainConfig, asked: int | None) -> int:
    """Return how many variants are to be alive; at least two.

    Raises InputError when not even two fit.
    """
    if asked is not None:
        memory_estimate.check(config, 1, compared=asked)
        return asked
    if hardware.gpu_count():
        return 2
    memory_estimate.check(config, 1, compared=2)
    return int(memory_estimate.free_bytes() // memory_estimate.needed_bytes(config, compared=True))


def _row(measured: Measured, verdict: Parity | None, flops: float, traffic: int | None) -> Row:
    results = measured.results
    seconds = stats.percentiles([step for block in measured.rounds for step in block])
    samples = results.config["batch_size"] * results.world_size
    return Row(
        reason=None,
        step_seconds=seconds,
        samples_per_second={
            "global": samples / seconds["p50"],
            "whole_run": results.samples_per_second["whole_run"],
        },
        startup_seconds=results.startup_seconds,
        peak_memory_bytes=results.peak_memory_bytes,
        flops_per_second=flops / seconds["p50"],
        bytes_per_second=traffic / seconds["p50"] if traffic else None,
        techniques=results.techniques,
        parity=verdict.as_json() if verdict else None,
    )


@dataclass(frozen=True)
class _Group:
    """Variants that took turns with one another: once, or, started anew, more often.

    Of a variant that failed, nothing is kept.
    """

    starts: Sequence[Mapping[str, Measured]]

    def __contains__(self, name: str) -> bool:
        return all(name in start for start in self.starts)

    def first(self, name: str) -> Measured:
        """Return the variant, as it was started first."""
        return self.starts[0][name]

    def ratio(self, slower: str, faster: str, confidence: float) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`."""
        return speedup_of_all([(start[slower], start[faster]) for start in self.starts], confidence)

    def parity(self, one: str, other: str, exact: Reference, steps: int) -> Parity:
        """Return the parity of two variants.

        Half precision is compared with fp32, not the other way round.
        """
        if [self.first(name).results.config["amp_level"] for name in (one, other)] == ["O1", "O0"]:
            one, other = other, one
        return judge_all([(start[one], start[other]) for start in self.starts], exact, steps)


class _Measurement:
    """A task that is being measured."""

    def __init__(self, line: Line, folder: Path) -> None:
        self.line, self.folder = line, folder
        self.rows: dict[str, Row] = {name: Row(reason) for name, reason in line.absent.items()}
        self.of_group: dict[str, int] = {}
        self.groups: list[_Group] = []
        self.traffic: dict[str, int] = {}  # by amp level
        self.exact: Reference | None = None
        self.tried_modes: str | None = None

    def find_mode(self, progress: Progress, label: str) -> None:
        """Find the mode of torch.compile for the best forms, where there is a choice."""
        if not self.line.modes:
            return
        choice = compile_mode.choose(
            self.line.config,
            self.line.modes,
            self.folder / "modes",
            progress,
            f"{label}: torch.compile's modes",
        )
        self.line, self.tried_modes = in_mode(self.line, choice), choice.said

    def run_group(self, names: list[str], turns: Turns, progress: Progress, label: str) -> None:
        """Run the baseline and the variants `names` in turns, started as often as is asked."""
        number = len(self.groups)
        folder = self.folder / f"group{number + 1}"
        chosen = {name: self.line.variants[name] for name in [self.line.baseline, *names]}
        starts: list[dict[str, Measured]] = []
        for where in interleaved.folders_of_starts(folder, self.line.compare.starts):
            failed: dict[str, GalleryError] = {}
            starts.append(
                interleaved.take_turns(
                    chosen, LaunchConfig(), turns, where, progress, label, dropped=failed
                )
            )
            for name, error in failed.items():
                (where / name).mkdir(parents=True, exist_ok=True)
                (where / name / "failure.txt").write_text(f"{error}\n")
                self.rows[name] = Row(interleaved.reason_of(error))
                del chosen[name]
            if self.line.baseline not in chosen:
                break
        self.groups.append(_Group(starts))
        for name in chosen:
            self.of_group[name] = number
            if (file := folder / name / TRAFFIC_FILE).exists():
                self.traffic[self.line.variants[name].config.amp_level] = json.loads(
                    file.read_text()
                )

    def judge(self, exact: Reference) -> None:
        """Make a row for each variant that ran."""
        self.exact = exact
        flops = float(exact.probe["flops"]) / exact.probe["batches"]
        baseline = self.line.baseline
        for name, number in self.of_group.items():
            group = self.groups[number]
            if baseline not in group:
                self.rows[name] = Row(f"ran, but {baseline}, which it is held against, did not")
                continue
            steps = self.line.compare.parity_steps
            verdict = group.parity(baseline, name, exact, steps) if name != baseline else None
            traffic = self.traffic.get(self.line.variants[name].config.amp_level)
            row = _row(group.first(name), verdict, flops, traffic)
            if self.tried_modes is not None and name in self.line.in_best_mode:
                row = dataclasses.replace(
                    row, techniques={**row.techniques, "modes tried": self.tried_modes}
                )
            self.rows[name] = row

    def ratio(self, slower: str, faster: str) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`.

        The ratio is direct where both took turns with one another, otherwise through the baseline.
        """
        a, b = (self.groups[self.of_group[name]] for name in (slower, faster))
        baseline, confidence = self.line.baseline, self.line.compare.confidence
        if slower == baseline or a is b:
            return b.ratio(slower, faster, confidence)
        return stats.change_of_ratio(
            a.ratio(baseline, slower, confidence), b.ratio(baseline, faster, confidence)
        )

    def comparable(self, slower: str, faster: str) -> bool:
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
        if self.line.baseline in (slower, faster) or self.exact is None:
            return False
        a, b = (self.groups[self.of_group[name]].starts for name in (slower, faster))
        both = _Group(
            [{slower: one[slower], faster: other[faster]} for one, other in zip(a, b, strict=True)]
        )
        return both.parity(slower, faster, self.exact, self.line.compare.parity_steps).passed

    def ratios(self) -> list[tuple[str, str, float, float, float]]:
        """Return all ratios that are wanted and may be given."""
        found = []
        for slower, faster in self.line.pairs:
            if self.comparable(slower, faster):
                ratio = self.ratio(slower, faster)
                found.append((slower, faster, ratio.ratio, ratio.low, ratio.high))
        return found


def measure(
    line: Line,
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
    label = label or line.config.model.rsplit(":", 1)[-1]
    run = _Measurement(line, folder)
    reason: str | None = None
    limits: dict[str, float] = {}
    sizes: dict[str, Any] = {}
    try:
        sized = tasks.with_sizes(line.config)
        sizes = {
            name: getattr(sized, name)
            for name in ("batch_size", "image_size", "sequence_length")
            if getattr(sized, name)
        }
        together = list(
            groups(
                [name for name in line.variants if name != line.baseline],
                alive_at_a_time(line.config, alive),
            )
        )
        probed_batches = max(parity.PROBE_BATCHES.values())
        warmup = max(line.config.warmup_steps, line.compare.parity_steps, probed_batches)
        turns = Turns(warmup, line.compare.rounds, line.compare.block_steps, probed_batches)
        run_config = interleaved.configuration(line.config, turns, folder / "reference")
        exact_config = float64_reference.configuration(
            run_config, line.compare.parity_steps, probed_batches
        )
        of_reference = f"{label}, {float64_reference.PART}"
        with Progress(enabled=progress) as shown:
            with shown.ticking(f"{label}: limits of this machine", part="limits of this machine"):
                limits = machine_limits()
            exact = float64_reference.reference_for(
                exact_config, LaunchConfig(), shown, of_reference
            )
            run.find_mode(shown, label)
            for names in together:
                run.run_group(names, turns, shown, label)
            probed = next(
                (variant.probe for group in run.groups for variant in group.starts[0].values()),
                None,
            )
            # The data have changed.
            if probed is not None and exact.kept and not exact.belongs_to(probed):
                exact = float64_reference.run_reference(
                    exact_config, LaunchConfig(), shown, of_reference
                )
        run.judge(exact)
    except GalleryError as error:
        reason = interleaved.reason_of(error)
        run.rows = {**{name: Row(reason) for name in line.variants}, **run.rows}
    rows = {name: run.rows[name] for name in line.order}
    ratios = run.ratios() if reason is None else []
    return Outcome(
        digest, date, round(time.monotonic() - began, 1), reason, sizes, limits, rows, ratios
    )
