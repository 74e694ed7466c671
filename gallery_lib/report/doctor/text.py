"""Text of `gallery doctor` for no folder, one folder or two, and the runs that a folder holds."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.console.table import text_table
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.report.doctor.advice import advice
from gallery_lib.report.doctor.scaling import scaling_text
from gallery_lib.report.doctor.step_phases import step_rows
from gallery_lib.report.doctor.techniques import technique_rows
from gallery_lib.system import hardware
from gallery_lib.train.results import Results, read_results


def text(folders: Sequence[str]) -> str:
    """Return the report for no folder, one folder or two.

    Without a folder it is about the machine, with one about a run, with two about one process
    against several.

    Raises:
        InputError: for more than two.
    """
    if len(folders) > 2:
        raise InputError(
            "usage: gallery doctor [RUN [RUN_ON_SEVERAL_PROCESSES]]", parameter="folder"
        )
    if not folders:
        return machine_text()
    return run_text(folders[0]) if len(folders) == 1 else several_text(folders[0], folders[1])


def machine_text() -> str:
    """Return a description of this machine, and which techniques apply on it."""
    return (
        f"{hardware.describe(hardware.machine_facts())}\n{platform.platform()}\n\n"
        f"{text_table(technique_rows())}"
    )


def run_text(run_dir: Path | str) -> str:
    """Return where the step of each run in `run_dir` went, and what to change.

    Raises:
        InputError: when nothing was measured there.
    """
    return "\n\n".join(_step_text(results) for results in measured_below(run_dir))


def _step_text(results: Results) -> str:
    head = (
        f"{results.task}, {results.config['amp_level']}, batch size "
        f"{results.config['batch_size']}, {results.world_size} process(es)"
    )
    return "\n".join(
        [head, text_table(step_rows(results)), "", *(f"- {line}" for line in advice(results))]
    )


def several_text(one_dir: Path | str, several_dir: Path | str) -> str:
    """Return why the run on several processes is as fast as it is, beside the one on one process.

    Both are folders of runs, of comparisons or of notebooks; a folder that holds both may be given
    twice.

    Raises:
        InputError: when the folders hold no two runs of the same task.
    """
    ones = [results for results in measured_below(one_dir) if results.world_size == 1]
    pairs = [
        (one, more)
        for more in measured_below(several_dir)
        for one in ones
        if more.world_size > 1 and one.task == more.task
    ]
    if not pairs:
        raise InputError(
            "give the run on one process first, then one of the same task on several.",
            parameter="folder",
        )
    return scaling_text(*pairs[0])


def measured_in(folder: Path | str) -> Results:
    """Return the results of a run; for a comparison, those of its second variant.

    Raises:
        InputError: when there are none.
    """
    comparison = Path(folder) / "comparison.json"
    if not comparison.is_file():
        return read_results(folder)
    return read_comparison(folder).candidate


def measured_below(folder: Path | str) -> list[Results]:
    """Return the results of a run, of a comparison, or of a notebook's folder.

    In the folder of a notebook, each comparison counts; without comparisons, each run.
    """
    root, files = Path(folder), ("comparison.json", "results.json")
    if not any((root / file).is_file() for file in files):
        for file in files:
            if inside := sorted(path.parent for path in root.rglob(file)):
                return [measured_in(path) for path in inside]
    return [measured_in(root)]
