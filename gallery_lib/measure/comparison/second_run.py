"""Second run of a variant: how far does rounding alone carry the same training?

It trains the same steps on the same batches, from weights that are moved by about a rounding of the
precision, and probes gradients there. It is run where a check fails or curves part, and not kept.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from gallery_lib.config import LaunchConfig
from gallery_lib.console.progress import Progress
from gallery_lib.measure.comparison import gradient_probe as probe
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.plan import Turns, Variant, configuration
from gallery_lib.measure.comparison.worker import PROBE_FILE, SECOND, WORKER, Role
from gallery_lib.measure.part import run_part
from gallery_lib.train.results import read_results

PART = "second run"
"""Name of such a run where it is shown."""


def run(
    variant: Variant,
    launch: LaunchConfig,
    turns: Turns,
    folder: Path,
    progress: Progress,
    label: str,
) -> Reference:
    """Train the variant again; return its losses of all steps, and its probe.

    `folder` is a new folder of the run, which is removed.
    """
    config = dataclasses.replace(
        configuration(variant.config, turns, folder), evaluate=False, save_weights=False
    )
    role = Role(
        SECOND, None, 0, turns.total_steps, turns.probe_batches, recipe=list(variant.recipe)
    )
    run_part(
        config,
        launch,
        module=WORKER,
        environment={**variant.environment, **role.variable()},
        progress=progress,
        name=f"{label}, {PART}",
        part=PART,
    )
    losses = [loss for _, loss in read_results(folder).loss["curve"]]
    result = Reference(losses, probe.load(folder / PROBE_FILE), kept=False)
    shutil.rmtree(folder)
    return result
