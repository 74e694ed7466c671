"""`gallery bench`: the tasks, one after the other, in every variant that a user could pick.

Every task is written down when it is done, so that an interrupted bench goes on where it was.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.config import BenchConfig, options
from gallery_lib.errors import InputError
from gallery_lib.measure.bench import task as task_bench
from gallery_lib.measure.bench.plan import Plan, bench_plan
from gallery_lib.measure.bench.result import Bench, read_bench, write_bench
from gallery_lib.measure.comparison.untimed import measured_key
from gallery_lib.system import hardware, paths
from gallery_lib.system.version import library_version

_PEERS_LIBRARIES = ("accelerate", "lightning-fabric", "gallery_lib")
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", *_PEERS_LIBRARIES)


def versions() -> dict[str, str]:
    """Return the versions of the libraries that are measured, by name."""
    return {name: library_version(name) or "not installed" for name in _LIBRARIES}


def digest_of(plan: Plan) -> str:
    """Return a digest of everything that the figures depend on: options, code and machine."""
    variants = {name: dataclasses.asdict(variant) for name, variant in plan.variants.items()}
    turns = dataclasses.asdict(plan.compare)
    return measured_key(plan.config, turns, variants, dict(plan.absent), versions())


def _plans(names: Sequence[str], config: BenchConfig) -> dict[str, Plan]:
    """Return the plan of each task by name; raise InputError where the options make no sense."""
    wanted = list(dict.fromkeys(names)) or tasks.names()
    by_name = {name.rsplit(":", 1)[-1]: bench_plan(name, config) for name in wanted}
    if len(by_name) < len(wanted):
        raise InputError(
            f"two of the tasks {', '.join(wanted)} have the same name: measure them one by one.",
            parameter="names",
        )
    for plan in by_name.values() if names else ():  # of all tasks, one without data keeps a reason
        tasks.data_of(plan.config)
    return by_name


def run(
    names: Sequence[str],
    config: BenchConfig,
    *,
    command: Sequence[str] = ("gallery", "bench"),
    done: Callable[[Path, Bench], None] = lambda folder, bench: None,
    progress: bool = True,
) -> tuple[Path, Bench]:
    """Measure the tasks `names`, and return the folder and what came out.

    Args:
        names: tasks; all when empty.
        config: options of the bench.
        command: the command line that the result records.
        done: called with the folder and the bench after each task.
        progress: whether progress is shown.

    Raises:
        InputError: before anything is started, for unknown names, options that make no sense and a
            folder that will not do. Also for data that will not do where tasks are named; without
            names, the task keeps that as its reason.
    """
    config = options.checked(config)
    by_name = _plans(names, config)
    folder = paths.output_folder(
        config.out, "bench", resume=config.resume, file="bench.json", work="bench"
    )
    file = folder / "bench.json"
    earlier = read_bench(file).tasks if config.resume and file.exists() else {}
    conditions = dataclasses.asdict(config)
    del conditions["resume"], conditions["out"]
    bench = Bench(
        "bench",
        shlex.join(command),
        conditions,
        hardware.machine_facts(),
        versions(),
        dict(earlier),
    )
    for number, (name, plan) in enumerate(by_name.items(), 1):
        digest = digest_of(plan)
        kept = earlier.get(name)
        if kept is not None and kept.digest == digest and kept.reason is None:
            continue  # another one failed, or was with other options, code, or on another machine
        label = f"{name} ({number} of {len(by_name)})" if len(by_name) > 1 else name
        run_folder = paths.free_name(folder, name)
        outcome = task_bench.measure(plan, digest, run_folder, label=label, progress=progress)
        bench = dataclasses.replace(bench, tasks={**bench.tasks, name: outcome})
        write_bench(file, bench)
        done(folder, bench)
    return folder, bench
