"""Time to first step of each task: two runs in a row, with the accelerated backend at O1.

    python3 benchmarks/startup.py --out benchmarks/results/MACHINE/startup.json
    python3 benchmarks/startup.py --empty --out benchmarks/results/MACHINE/startup-empty.json

Both runs are the same, at the sizes for a few cores. The second run finds in the cache what the
first has compiled; `first` is cold only where the cache was. Start-up counts from the command,
`launch_single_task.py`, which has nothing imported, to the end of the warm-up. The steady-state
time of the warm-up's steps is subtracted. The second run may take at most 10 seconds.

With `--empty` there are three runs, as in new containers, whose caches have the data and nothing
else: cold; with the code of the first run, which `gallery cache load` takes from a bundle; and
warm. Loading the bundle is a command before its run, with a time of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures_file

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.config.options import words_of
from gallery_lib.system import paths
from gallery_lib.train.results import read_results

MOST_SECONDS = 10.0
CHECKOUT = figures_file.HERE.parent


def _command(*words: str, variables: Mapping[str, str]) -> float:
    """Run a Python command in the checkout with these variables, and return its seconds."""
    command, environment = [sys.executable, *words], {**os.environ, **variables}
    began = time.perf_counter()
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run(name: str, steps: int, variables: Mapping[str, str]) -> dict[str, Any]:
    """Run a task, and return its start-up and throughput."""
    with TemporaryDirectory() as folder:
        config = TrainConfig(
            model=name,
            amp_level="O1",
            compiler_opt=True,
            max_steps=steps,
            evaluate=False,
            run_dir=f"{folder}/run",
        )
        words = words_of(tasks.with_sizes(config, "quick"))
        _command("launch_single_task.py", *words, variables=variables)
        results = read_results(Path(folder) / "run")
    parts = ("startup_seconds", "samples_per_second")
    return {part: getattr(results, part) for part in parts}


def from_empty(name: str, steps: int) -> dict[str, Any]:
    """Run a task cold, with a bundle, and warm; return the seconds of loading it and its bytes."""
    tasks.data_of(TrainConfig(model=name))  # makes it where it is missing: only code is cold
    with TemporaryDirectory() as folder:
        cache, bundle = Path(folder, "cache"), Path(folder, "code.zip")
        variables = {
            "GALLERY_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "XDG_CACHE_HOME": str(cache),
        }

        def cache_command(verb: str) -> float:
            return _command("-m", "gallery_lib", "cache", verb, str(bundle), variables=variables)

        _empty(cache)
        found: dict[str, Any] = {"cold": run(name, steps, variables)}
        cache_command("save")
        _empty(cache)  # at the same path, since another has C++ compiled again
        found |= {"bundle_bytes": bundle.stat().st_size, "load_seconds": cache_command("load")}
        return found | {which: run(name, steps, variables) for which in ("bundle", "warm")}


def _empty(cache: Path) -> None:
    """Leave nothing in the cache but the data of this checkout's."""
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    (cache / "data").symlink_to(paths.cache_dir() / "data")


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of both runs of each task."""
    parts = ("first run starts in", "second run", "of which compiling")
    table = [["task", *parts, "samples/s, steady state", "whole run"]]
    for name, row in found.items():
        first, second = (row[which]["startup_seconds"] for which in ("first", "second"))
        rates = row["second"]["samples_per_second"]
        times = (first["total"], second["total"], second["compile"])
        rate_cells = (f"{rates[key]:.1f}" for key in ("global", "whole_run"))
        table.append([name, *(f"{value:.1f} s" for value in times), *rate_cells])
    return table


def rows_from_empty(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of the three runs of each task."""
    table = [["task", "cold, starts in", "with a bundle", "warm", "loading the bundle", "its size"]]
    for name, row in found.items():
        starts = [row[which]["startup_seconds"]["total"] for which in ("cold", "bundle", "warm")]
        times = [f"{value:.1f} s" for value in (*starts, row["load_seconds"])]
        table.append([name, *times, f"{row['bundle_bytes'] / 2**20:.1f} MiB"])
    return table


def main() -> int:
    """Run all tasks; return 1 when a warm run takes longer to start than it may."""
    parser = figures_file.parser(__doc__, tasks="run")
    parser.add_argument("--empty", action="store_true", help="cold, with a bundle, and warm")
    figures_file.add_numbers(parser, steps=(30, "steps of each run, warm-up included"))
    arguments = parser.parse_args()
    key, heading, last, rows = "tasks", "How soon a run starts", "second", rows_of
    if arguments.empty:
        key, heading, last, rows = "empty", f"{heading} in a new container", "warm", rows_from_empty
    found = figures_file.earlier(arguments.out, key) or {}
    for name in arguments.only:
        if arguments.empty:
            found[name] = from_empty(name, arguments.steps)
        else:
            found[name] = {which: run(name, arguments.steps, {}) for which in ("first", "second")}
        figures_file.show(rows({name: found[name]}))
        figures_file.write(arguments.out, {key: found}, heading, rows(found))
    starts = (row[last]["startup_seconds"]["total"] for row in found.values())
    return int(max(starts) > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
