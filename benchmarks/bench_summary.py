"""Benches of one machine beside one another: geometric means by run, and the newest small and large inputs task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from published import File, Machine

from gallery_lib import stats
from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.bench.result import EAGER, OURS, Bench, Outcome
from gallery_lib.stats import Ratio

SIZES = ("small", "large")
BEST = "-best"
_NAMES = {
    "eager-O1": "eager O1",
    "eager-fp32": "eager fp32",
    "accelerate": "Accelerate",
    "fabric": "Fabric",
}


@dataclass(frozen=True)
class Run:
    """One run at one size: a file, or one for most tasks and others for tasks with options of their own."""

    size: str
    number: int
    files: tuple[File, ...]

    @property
    def benches(self) -> list[Bench]:
        """The files' content."""
        return [file.bench for file in self.files if file.bench is not None]

    @property
    def tasks(self) -> dict[str, Outcome]:
        """Every task of the run."""
        return {name: outcome for bench in self.benches for name, outcome in bench.tasks.items()}

    @property
    def baseline(self) -> str:
        """Eager at the precision of what is compared."""
        return self.benches[0].baseline

    @property
    def precision(self) -> str:
        """`O1` or `O0`, as options have it."""
        return self.benches[0].amp_level

    @property
    def others(self) -> list[str]:
        """What ours is held against: eager at the same precision, eager fp32, then each peer as documented and at its best."""
        names = [
            name
            for name in dict.fromkeys(
                name for outcome in self.tasks.values() for name in outcome.rows
            )
            if name != OURS
        ]
        order = [
            self.baseline,
            *EAGER.values(),
            *(name for name in names if not name.endswith(BEST)),
        ]
        return sorted(
            names,
            key=lambda name: (
                order.index(name.removesuffix(BEST)) if name.removesuffix(BEST) in order else -1,
                name,
            ),
        )

    def ratios(self, other: str) -> dict[str, Ratio]:
        """How many times as fast as `other` ours is, by task; without tasks that have no ratio."""
        found = {name: outcome.ratio(other, OURS) for name, outcome in self.tasks.items()}
        return {name: ratio for name, ratio in found.items() if ratio is not None}


def label(variant: str) -> str:
    """A variant's name as a table shows it."""
    plain = variant.removesuffix(BEST)
    return _NAMES.get(plain, plain) + (", at its best" if variant.endswith(BEST) else "")


def runs_of(machine: Machine) -> list[Run]:
    """The runs of a machine, small inputs first, each size by number."""
    found: dict[tuple[int, int], list[File]] = {}
    for file in machine.files:
        for place, size in enumerate(SIZES):
            if file.series.startswith(f"bench-{size}"):
                found.setdefault((place, file.run), []).append(file)
    return [
        Run(SIZES[place], number, tuple(files)) for (place, number), files in sorted(found.items())
    ]


def _title(run: Run, runs: Sequence[Run]) -> str:
    several = sum(other.size == run.size for other in runs) > 1
    return f"{run.size} inputs, run {run.number}" if several else f"{run.size} inputs"


def mean_text(run: Run, other: str) -> str:
    """The geometric mean over the tasks that have a ratio, with its interval; `–` where none has."""
    ratios = run.ratios(other)
    if not ratios:
        return "–"
    left_out = "" if len(ratios) == len(run.tasks) else f", {len(ratios)} of {len(run.tasks)} tasks"
    return f"{stats.geometric_mean(list(ratios.values()))}{left_out}"


def means_rows(runs: Sequence[Run]) -> Rows:
    """Geometric means of ours over each alternative, a column for each run."""
    header = ["ours is so many times as fast as", *(_title(run, runs) for run in runs)]
    others = dict.fromkeys(
        other for run in sorted(runs, key=lambda run: -len(run.others)) for other in run.others
    )
    return [header, *([label(other), *(mean_text(run, other) for run in runs)] for other in others)]


def best_peer(run: Run, task: str) -> tuple[str, Ratio] | None:
    """The alternative other than plain eager over which ours gains least on a task, and that ratio; None where none was measured."""
    others = {
        other: run.ratios(other).get(task) for other in run.others if other not in EAGER.values()
    }
    found = [(other, ratio) for other, ratio in others.items() if ratio is not None]
    return min(found, key=lambda each: each[1].ratio) if found else None


def newest(runs: Sequence[Run], size: str) -> Run | None:
    """The last run of a size."""
    return next((run for run in reversed(runs) if run.size == size), None)


def task_rows(runs: Sequence[Run]) -> Rows:
    """A line a task: steps, ours over eager and over the best peer, for the newest small and large inputs beside one another."""
    shown = [run for size in SIZES if (run := newest(runs, size))]
    header = ["task"]
    for run in shown:
        header += [
            f"{run.size}: input",
            f"{label(run.baseline)} → ours",
            "over eager",
            "over the best peer",
        ]
    names = dict.fromkeys(name for run in shown for name in run.tasks)
    return [
        header,
        *(
            [name, *(cell for run in shown for cell in _task_cells(run, name, runs))]
            for name in names
        ),
    ]


def _input(run: Run, name: str, runs: Sequence[Run]) -> str:
    """Batch size and size of an input; of two sizes that were options of all tasks, the one that every run of this task has."""
    sizes = run.tasks[name].sizes
    all_have = set.intersection(
        *(set(other.tasks[name].sizes) for other in runs if name in other.tasks)
    )
    words = {"image_size": "{}²", "sequence_length": "{} tokens"}
    shown = [text.format(sizes[key]) for key, text in words.items() if key in all_have]
    return " × ".join([str(sizes.get("batch_size", "")), *shown])


def _task_cells(run: Run, name: str, runs: Sequence[Run]) -> list[str]:
    outcome = run.tasks.get(name)
    if outcome is None or outcome.reason is not None:
        return ["–"] * 4
    peer, ratio = best_peer(run, name), run.ratios(run.baseline).get(name)
    rows = [outcome.rows.get(variant) for variant in (run.baseline, OURS)]
    steps = [
        seconds(row.step_seconds["p50"]) if row and row.reason is None else "–" for row in rows
    ]
    return [
        _input(run, name, runs),
        " → ".join(steps),
        str(ratio) if ratio else "not comparable",
        f"{peer[1]}, {label(peer[0])}" if peer else "–",
    ]
