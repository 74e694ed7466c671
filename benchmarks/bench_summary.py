"""Benches of one machine beside one another, as rows of tables.

The tables hold geometric means by run, and the newest small and large inputs task by task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from published import File, Machine

from gallery_lib import stats
from gallery_lib.console.table import Rows, markdown_table, seconds
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
    """One run at one size: its files.

    Most tasks share a file; tasks with options of their own have others.
    """

    size: str
    number: int
    files: tuple[File, ...]

    @property
    def benches(self) -> list[Bench]:
        """Return the benches that the files hold."""
        return [file.bench for file in self.files if file.bench is not None]

    @property
    def tasks(self) -> dict[str, Outcome]:
        """Return the outcome of every task of the run, by name."""
        return {name: outcome for bench in self.benches for name, outcome in bench.tasks.items()}

    @property
    def baseline(self) -> str:
        """Return the name of the baseline: eager at the precision of what is compared."""
        return self.benches[0].baseline

    @property
    def precision(self) -> str:
        """Return the precision, `O1` or `O0`, as the options spell it."""
        return self.benches[0].amp_level

    @property
    def others(self) -> list[str]:
        """Return the variants that ours is compared with.

        They are eager at the same precision, eager fp32, then each peer as documented and at its
        best.
        """
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
        """Return how many times as fast as `other` ours is, by task.

        Tasks that have no ratio are left out.
        """
        ratios = {name: outcome.ratio(other, OURS) for name, outcome in self.tasks.items()}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def label(variant: str) -> str:
    """Return a variant's name as a table shows it."""
    plain = variant.removesuffix(BEST)
    return _NAMES.get(plain, plain) + (", at its best" if variant.endswith(BEST) else "")


def runs_of(machine: Machine) -> list[Run]:
    """Return the runs of a machine, small inputs first, each size by number."""
    by_run: dict[tuple[int, int], list[File]] = {}
    for file in machine.files:
        for place, size in enumerate(SIZES):
            if file.series.startswith(f"bench-{size}"):
                by_run.setdefault((place, file.run), []).append(file)
    return [
        Run(SIZES[place], number, tuple(files)) for (place, number), files in sorted(by_run.items())
    ]


def _title(run: Run, runs: Sequence[Run]) -> str:
    several = sum(other.size == run.size for other in runs) > 1
    return f"{run.size} inputs, run {run.number}" if several else f"{run.size} inputs"


def mean_text(run: Run, other: str) -> str:
    """Return the geometric mean with its interval, over the tasks that have a ratio.

    Return `–` where no task has one.
    """
    ratios = run.ratios(other)
    if not ratios:
        return "–"
    left_out = "" if len(ratios) == len(run.tasks) else f", {len(ratios)} of {len(run.tasks)} tasks"
    return f"{stats.geometric_mean(list(ratios.values()))}{left_out}"


def means_rows(runs: Sequence[Run]) -> Rows:
    """Return the geometric means of ours over each alternative, with a column for each run."""
    header = ["ours is so many times as fast as", *(_title(run, runs) for run in runs)]
    others = dict.fromkeys(
        other for run in sorted(runs, key=lambda run: -len(run.others)) for other in run.others
    )
    return [header, *([label(other), *(mean_text(run, other) for run in runs)] for other in others)]


def best_peer(run: Run, task: str) -> tuple[str, Ratio] | None:
    """Return the alternative over which ours gains least on a task, and that ratio.

    Plain eager does not count as an alternative. Return None where none was measured.
    """
    others = {
        other: run.ratios(other).get(task) for other in run.others if other not in EAGER.values()
    }
    ratios = [(other, ratio) for other, ratio in others.items() if ratio is not None]
    return min(ratios, key=lambda pair: pair[1].ratio) if ratios else None


def newest(runs: Sequence[Run], size: str) -> Run | None:
    """Return the last run of a size; None where there is none."""
    return next((run for run in reversed(runs) if run.size == size), None)


def task_rows(runs: Sequence[Run]) -> Rows:
    """Return a row for each task, with the newest small and large inputs side by side.

    The cells are step times, ours over eager, and ours over the best peer.
    """
    columns = [run for size in SIZES if (run := newest(runs, size))]
    header = ["task"]
    for run in columns:
        header += [
            f"{run.size}: input",
            f"{label(run.baseline)} → ours",
            "over eager",
            "over the best peer",
        ]
    names = dict.fromkeys(name for run in columns for name in run.tasks)
    return [
        header,
        *(
            [name, *(cell for run in columns for cell in task_cells(run, name, runs))]
            for name in names
        ),
    ]


def _input(run: Run, name: str, runs: Sequence[Run]) -> str:
    """Return batch size and input size as text.

    Where two sizes were options of all tasks, the one that every run of this task has is shown.
    """
    sizes = run.tasks[name].sizes
    all_have = set.intersection(
        *(set(other.tasks[name].sizes) for other in runs if name in other.tasks)
    )
    words = {"image_size": "{}²", "sequence_length": "{} tokens"}
    words_of_sizes = [text.format(sizes[key]) for key, text in words.items() if key in all_have]
    return " × ".join([str(sizes.get("batch_size", "")), *words_of_sizes])


def task_cells(run: Run, name: str, runs: Sequence[Run]) -> list[str]:
    """Return input, steps, and the speed-up over eager and over the best peer."""
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


def long_inputs(files: Sequence[File]) -> str:
    """Return the table of benches at long inputs, task by task and run by run."""
    runs = [Run("long", file.run, (file,)) for file in sorted(files, key=lambda file: file.run)]
    header = ["task", "run", "input", "eager O1 → ours", "over eager", "over the best peer"]
    rows = [
        [name, str(run.number), *task_cells(run, name, runs)]
        for name in runs[0].tasks
        for run in runs
    ]
    return markdown_table([header, *rows])
