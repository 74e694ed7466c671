"""Sweep of a lab: many timelines × numbers of hosts, replayed one after another into one table.

A folder of a sweep holds `sweep.csv` with a line for each timeline on each number of hosts,
`settings.json`, and the figures of N hosts in `N-hosts/`. A sweep that is begun again with the same
folder measures what is missing. Lines of the table count as measured, so that a committed table can
be continued.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_on_lab import WHAT_IT_IS, DdpLabConfig, replayed, stretched, too_large
from figures_file import conditions, write_result

from gallery_lib.comm.candidates import PLAIN
from gallery_lib.config import LabConfig, ReplayConfig
from gallery_lib.config.options import check_value
from gallery_lib.errors import InputError
from gallery_lib.measure.replay.sweep import Cell, recording_of
from gallery_lib.measure.replay.sweep_table import SETTINGS, TABLE, read_sweep, write_sweep
from gallery_lib.measure.replay.timeline import Timeline, read_timeline

Place = tuple[Path, int]
"""Timeline's file and number of hosts: what a cell of the sweep measures."""


@dataclass(frozen=True)
class SweepPlan:
    """Timelines, numbers of hosts and options of a sweep, and the folder of its figures."""

    folder: Path
    timelines: dict[Path, Timeline]
    hosts: list[int]
    config: ReplayConfig
    lab: LabConfig
    processes: DdpLabConfig

    @property
    def description(self) -> dict[str, Any]:
        """Return what has to be the same when the sweep is continued, as `settings.json` has it."""
        replay = dataclasses.asdict(self.config)
        del replay["stretch"]  # may differ by number of hosts
        return {
            "replay": replay,
            "ranks": self.processes.ranks,
            "rate": self.lab.rate,
            "timelines": {
                path.name: [timeline.date, timeline.origin, timeline.step_seconds]
                for path, timeline in self.timelines.items()
            },
        }

    def lab_of(self, hosts: int) -> LabConfig:
        """Return the lab with this number of hosts."""
        return dataclasses.replace(self.lab, hosts=hosts)

    def folder_of(self, hosts: int) -> Path:
        """Return the folder of the figures on this number of hosts."""
        return self.folder / f"{hosts}-hosts"


def plan_sweep(
    config: ReplayConfig,
    lab: LabConfig,
    processes: DdpLabConfig,
    files: Sequence[Path],
    folder: Path,
) -> SweepPlan:
    """Return the plan of a sweep.

    Raises:
        InputError: for a wrong rate, timeline or number.
    """
    stretched(lab, config.stretch)  # refuses an invalid rate before anything is written
    timelines = {path.resolve(): read_timeline(path) for path in files}
    if len({path.name for path in timelines}) < len(timelines):
        raise InputError(
            "two timelines have the same file name, by which figures are kept. Rename one of them.",
            parameter="timelines",
        )
    numbers = processes.hosts_of_sweep.split(",")
    hosts = sorted(check_value(LabConfig, "hosts", number) for number in numbers)
    return SweepPlan(folder, timelines, hosts, config, lab, processes)


def sweep(plan: SweepPlan) -> None:
    """Measure what is missing, and write the table after each number of hosts.

    Raises:
        InputError: for a folder with figures of another sweep.
    """
    earlier = _earlier_settings(plan)
    cells = measured_cells(plan)
    reasons = _too_large(plan, cells)
    left = {
        hosts: [
            path
            for path in plan.timelines
            if (path, hosts) not in cells and (path, hosts) not in reasons
        ]
        for hosts in plan.hosts
    }
    stretches = _stretches(plan, cells, left)
    for hosts in plan.hosts:
        plan.folder_of(hosts).mkdir(parents=True, exist_ok=True)
    # The conditions are those of the measurement, not of looking at the figures again.
    _write_settings(plan, stretches, reasons, {} if any(left.values()) else earlier)
    for reason in reasons.values():
        print(f"not measured: {reason}")
    for hosts, files in left.items():
        try:
            if files:
                lab, out = plan.lab_of(hosts), plan.folder_of(hosts)
                replayed(files, "tuned", plan.config, lab, plan.processes, out)
        finally:  # what was measured before a failure gets its line
            if cells := measured_cells(plan):
                _write_table(plan.folder, cells)
    print(f"figures: {plan.folder / TABLE} and the files beside it")


def _earlier_settings(plan: SweepPlan) -> dict[str, Any]:
    """Return the settings in the folder, or {}.

    Raises:
        InputError: for those of another sweep.
    """
    file = plan.folder / SETTINGS
    earlier: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if earlier and earlier["sweep"] != plan.description:
        raise InputError(
            f"{plan.folder} holds a sweep with other timelines or options. Name a new folder.",
            parameter="out",
        )
    return earlier


def measured_cells(plan: SweepPlan) -> dict[Place, Cell]:
    """Return what the sweep has measured, by timeline and number of hosts.

    First come the lines of its table: a committed table may have been copied to be continued. Then
    come the figures in the folders of the sweep.
    """
    cells = _cells_of_table(plan)
    for folder in plan.folder.glob("*-hosts"):
        hosts = int(folder.name.removesuffix("-hosts"))
        for path, timeline in plan.timelines.items():
            if (folder / path.name).exists():
                figures = json.loads((folder / path.name).read_text())
                cells[path, hosts] = cell(figures, timeline, plan.lab_of(hosts), plan.processes)
    order = list(plan.timelines)
    return {place: cells[place] for place in sorted(cells, key=lambda p: (order.index(p[0]), p[1]))}


def _cells_of_table(plan: SweepPlan) -> dict[Place, Cell]:
    """Return the lines of the table.

    Raises:
        InputError: for a line of no timeline of the sweep.
    """
    table = plan.folder / TABLE
    if not table.exists():
        return {}
    paths = {recording_of(timeline): path for path, timeline in plan.timelines.items()}
    cells: dict[Place, Cell] = {}
    for line in read_sweep(table).cells:
        if line.recording not in paths:
            raise InputError(
                f"{table} has a line of {line.model} that is of none of the timelines. Name a new "
                "folder.",
                parameter="out",
            )
        cells[paths[line.recording], line.hosts] = line
    return cells


def cell(
    figures: dict[str, Any], timeline: Timeline, lab: LabConfig, processes: DdpLabConfig
) -> Cell:
    """Return a line of the sweep's table.

    `ddp_acc` needs the line of one host as well, and is left out.
    """
    ways = figures["ways"]
    choice = next((name for name in ways if name != PLAIN), PLAIN)
    # The speed-up is missing where DDP's own strategy was kept.
    ratio = ways[choice].get("speedup", {"ratio": 1.0, "low": 1.0, "high": 1.0})
    return Cell.of(
        timeline,
        hosts=lab.hosts,
        ranks=processes.ranks,
        rate=lab.rate,
        stretch=figures["replay"]["stretch"],
        replayed_on=figures["replayed_on"],
        ddp_step_seconds=ways[PLAIN]["step_seconds"]["p50"],
        chosen=choice,
        chosen_step_seconds=ways[choice]["step_seconds"]["p50"],
        acc_ratio=ratio["ratio"],
        acc_ratio_low=ratio["low"],
        acc_ratio_high=ratio["high"],
        ddp_acc=None,
    )


def _too_large(plan: SweepPlan, cells: dict[Place, Cell]) -> dict[Place, str]:
    """Return why this machine cannot replay what is missing, where it cannot.

    Numbers of hosts that only the measured cells have count as well.
    """
    numbers = sorted({*plan.hosts, *(hosts for _, hosts in cells)})
    reasons = {
        (path, hosts): too_large(timeline, plan.config.wires, hosts, plan.processes.ranks)
        for hosts in numbers
        for path, timeline in plan.timelines.items()
        if (path, hosts) not in cells
    }
    return {place: reason for place, reason in reasons.items() if reason}


def _stretches(
    plan: SweepPlan, cells: dict[Place, Cell], left: dict[int, list[Path]]
) -> dict[int, float]:
    """Return the stretch of each number of hosts.

    Raises:
        InputError: where cells of one number of hosts would have different ones.
    """
    stretches = dict.fromkeys(plan.hosts, plan.config.stretch)
    stretches |= {hosts: measured.stretch for (_, hosts), measured in cells.items()}
    for hosts in plan.hosts:
        if left[hosts] and stretches[hosts] != plan.config.stretch:
            raise InputError(
                f"{plan.folder} holds figures of {hosts} hosts with stretch={stretches[hosts]:g}. "
                "Continue with the same --stretch.",
                parameter="stretch",
            )
    return stretches


def _write_settings(
    plan: SweepPlan,
    stretches: dict[int, float],
    reasons: dict[Place, str],
    earlier: dict[str, Any],
) -> None:
    """Write `settings.json`; conditions in `earlier` take the place of those of now."""
    not_measured = [
        {"model": plan.timelines[path].task, "hosts": hosts, "reason": reason}
        for (path, hosts), reason in reasons.items()
    ]
    write_result(
        plan.folder / SETTINGS,
        {
            **conditions(),
            **earlier,
            "what_it_is": WHAT_IT_IS,
            "sweep": plan.description,
            "stretches": stretches,
            "not_measured": not_measured,
        },
    )


def _write_table(folder: Path, cells: dict[Place, Cell]) -> None:
    """Write the table, with `ddp_acc` where one host has been measured."""
    alone = {path: line.ddp_step_seconds for (path, hosts), line in cells.items() if hosts == 1}
    write_sweep(
        folder / TABLE,
        (
            dataclasses.replace(
                line, ddp_acc=alone[path] / line.ddp_step_seconds if path in alone else None
            )
            for (path, _), line in cells.items()
        ),
    )
