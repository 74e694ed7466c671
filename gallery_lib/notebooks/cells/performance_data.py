"""Functions for the notebook `performance_data`: read a sweep, show it by model and as a whole.

Nothing is measured here. Without a sweep, the notebook says so, shows the command that makes one,
and goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import PerformanceDataConfig
from gallery_lib.notebooks.cells.display import (
    NotMeasured,
    display_chart,
    display_markdown,
    display_table,
)
from gallery_lib.notebooks.cells.kernel_parameters import checked
from gallery_lib.system import paths

if TYPE_CHECKING:
    from gallery_lib.measure.replay.sweep import Cell, Sweep

HOW = """**Not measured**: there is no sweep in {place}. \
From the checkout's folder, this makes one (hours for eleven models):

```
python3 benchmarks/network.py record --model alexnet --out timelines/alexnet.json
python3 benchmarks/network.py sweep timelines/*.json --ranks 2 --rate 10gbit --stretch 8 \
--out runs/sweep
```

The first line is repeated for each model. Then run this notebook with the parameter
`sweep="runs/sweep"`."""
NONE = NotMeasured("no sweep was read above.")


def settings(parameters: dict[str, Any] | None = None) -> PerformanceDataConfig:
    """Check the notebook's parameters and return them.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    return checked(PerformanceDataConfig, parameters)


def read(settings: PerformanceDataConfig) -> Sweep | None:
    """Return the sweep to show, and show the conditions of its figures.

    A relative path starts at the working directory or, if nothing is there, at the checkout.
    Returns None where nothing has been measured.

    Raises:
        InputError: for a bad file.
    """
    from gallery_lib.measure.replay.sweep import find_sweep

    given = settings.sweep or "benchmarks/results"
    here = Path(given).expanduser()
    place = here if settings.sweep and here.exists() else (paths.checkout() or Path.cwd()) / here
    sweep = find_sweep(place) if settings.sweep or place.exists() else None
    if sweep is None:
        display_markdown(HOW.format(place=f"`{given}`"))
        return None
    recordings = [cells[0] for model in sweep.models for cells in sweep.recordings(model)]
    recorded = sum(cell.is_recorded for cell in recordings)
    devices = ", ".join(dict.fromkeys(cell.device for cell in recordings))
    rows = [
        ["what these figures are", sweep.what_it_is],
        ["rate of each host's link", f"{sweep.rate}, emulated"],
        ["stretch", sweep.stretches],
        ["processes on each host", str(sweep.ranks)],
        [
            "timelines",
            f"{recorded} recorded, {len(recordings) - recorded} derived; of {devices}"
            if recordings
            else "none was replayed",
        ],
        ["wire formats offered to the tuner", sweep.wires],
        ["turns", f"{sweep.rounds} of each way, {sweep.block_steps} counted steps in each"],
        ["replayed on", sweep.machines],
        ["date", sweep.date],
        ["command", f"`{sweep.command}`"],
        ["table", f"`{sweep.path.parent.name}/{sweep.path.name}`"],
    ]
    display_table([["condition", ""], *rows])
    return sweep


def show_scatter(sweep: Sweep | None) -> None:
    """Show all models: the gain over plain DDP against how well DDP scales."""
    if sweep is None:
        NONE.show()
        return
    from gallery_lib import tasks
    from gallery_lib.report import replay

    missing = sweep.missing(dict.fromkeys([*tasks.names(), *sweep.models]))
    if sweep.cells:
        display_chart(replay.scatter(sweep, missing))
    else:
        display_table(replay.cell_rows(sweep, missing))


def show_model(sweep: Sweep | None, model: str) -> None:
    """Show one model: its settings, and its throughput by number of hosts.

    There is a table and a figure for each timeline of the model.
    """
    if sweep is None:
        NONE.show()
        return
    from gallery_lib.report import replay

    missing = sweep.missing([model])
    recordings = sweep.recordings(model)
    if not recordings:
        reasons = "; ".join(dict.fromkeys(missing.values()))
        hosts = ", ".join(map(str, sweep.hosts))
        NotMeasured(f"{model} on {hosts} hosts ({reasons}).").show()
    for cells in recordings:
        display_table([["setting", "value"], *_settings_of(cells[0])])
        display_chart(replay.throughput(cells, sweep.hosts, missing))


def show_other_models(sweep: Sweep | None) -> None:
    """Show the models of the sweep that are not in the gallery."""
    from gallery_lib import tasks

    others = [model for model in sweep.models if model not in tasks.names()] if sweep else []
    for model in others:
        show_model(sweep, model)
    if not sweep:
        NONE.show()
    elif not others:
        display_markdown("There are none in this sweep.")


def show_advice(sweep: Sweep | None) -> None:
    """Show for which models more hosts pay with plain DDP, and where the tuner gains."""
    if sweep is None:
        NONE.show()
        return
    from gallery_lib.report import replay

    display_table(replay.model_rows(sweep))


def _settings_of(cell: Cell) -> list[list[str]]:
    from gallery_lib import tasks

    task = tasks.get(cell.model) if cell.model in tasks.names() else None
    differs = task and task.batch_size != cell.batch_size
    own = f" (the task's own: {task.batch_size})" if task and differs else ""
    return [
        ["model", f"{cell.model}: {task.title}" if task else cell.model],
        ["domain", task.domain if task else "not one of the gallery's"],
        ["batch size of a process", f"{cell.batch_size}{own}"],
        ["input", cell.input_sizes or "not recorded"],
        ["precision", cell.precision],
        ["gradients", f"{cell.gradient_bytes / 1e6:.1f} MB"],
        [
            "timeline",
            f"{cell.timeline}; {cell.device}; {1000 * cell.step_seconds_alone:.3g} ms a step "
            "without communication",
        ],
    ]
