"""Compare two variants of a training run: is the training the same, and how do their speeds relate?

Three runs, each in processes of its own with its own environment. First the float64 reference, alone, to its end
(or one that was kept from an earlier comparison). Then the baseline starts up, alone; then the candidate, alone while
the baseline waits: start-up is true for both (on one host processes are started without torchrun, whose own seconds
would only be added to both). Then they take turns, a block of steps each, in the order A B B A, so that drift of the machine
falls on both. Last each evaluates, in turn. Speeds are only given when parity holds.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import options, paths, stats, tasks
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.launcher import Job, start
from gallery_lib.log import read_steps
from gallery_lib.measure import parity, probe, reference
from gallery_lib.measure.reference import Reference
from gallery_lib.measure.turns import TurnServer
from gallery_lib.measure.worker import PROBE_FILE, WORKER, Role
from gallery_lib.processes import interruptible
from gallery_lib.progress import Progress
from gallery_lib.results import Results, write_json
from gallery_lib.tasks import memory


@dataclass(frozen=True)
class Comparison:
    """What came out. `variants` holds the baseline first; `speedup` is None when parity failed."""

    task: str
    folder: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None
    parity: parity.Parity
    break_even_steps: int | None
    verdict: str
    chance: dict[str, float]

    @property
    def baseline(self) -> Results:
        """The first variant's results."""
        return next(iter(self.variants.values()))

    @property
    def candidate(self) -> Results:
        """The second variant's results."""
        return list(self.variants.values())[1]

    def as_json(self) -> dict[str, Any]:
        """The content of `comparison.json`."""
        return {
            "schema": 1,
            "task": self.task,
            "variants": {name: dataclasses.asdict(results) for name, results in self.variants.items()},
            "speedup": dataclasses.asdict(self.speedup) if self.speedup else None,
            "parity": self.parity.as_json(),
            "break_even_steps": self.break_even_steps,
            "verdict": self.verdict,
            "chance": self.chance,
        }


def rounds_of(durations: list[float], warmup_steps: int, block_steps: int) -> list[list[float]]:
    """Step times by turn, without the first step of each turn (caches are cold, batches are waiting)."""
    counted = durations[warmup_steps:]
    return [counted[i + 1 : i + block_steps] for i in range(0, len(counted) - block_steps + 1, block_steps)]


def break_even_steps(baseline: Results, candidate: Results) -> int | None:
    """Steps after which the candidate's longer start-up has paid for itself; None when its steps are not shorter."""
    saved_per_step = baseline.step_seconds["p50"] - candidate.step_seconds["p50"]
    if saved_per_step <= 0:
        return None
    return max(0, math.ceil((candidate.startup_seconds["total"] - baseline.startup_seconds["total"]) / saved_per_step))


def each_step_seconds(run_dir: Path) -> list[float]:
    """The time of every training step of a run, in order."""
    return [seconds for line in read_steps(run_dir) for seconds in line["each_step_seconds"]]


def _judge(names: list[str], results: dict[str, Results], probes: list[dict[str, Any]], exact: Reference, steps: int) -> parity.Parity:
    curves = [[loss for _, loss in results[name].loss["curve"][:steps]] for name in names]
    levels = [results[name].config["amp_level"] for name in names]
    triples = (curves[0], curves[1], exact.losses), (probes[0], probes[1], exact.probe)
    return parity.judge(*triples, levels[1], same_precision=levels[0] == levels[1])


def _checker(jobs: dict[str, Job], bar: Progress, label: Callable[[], str]) -> Callable[[], None]:
    """What is done while waiting for a run: show how far it is, and raise if one has ended."""

    def check() -> None:
        bar.update(sum(job.steps_done() for job in jobs.values()), label())
        for job in jobs.values():
            if not job.running():
                job.result()

    return check


@interruptible("the comparison")
def compare(
    variants: dict[str, TrainConfig],
    launch: LaunchConfig | None = None,
    options_: CompareConfig | None = None,
    *,
    folder: Path | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare two variants of a task; the first is the baseline.

    Both are trained for `warmup_steps + rounds × block_steps` steps from the same weights on the same batches, and
    evaluated. Writes `comparison.json` into `folder` (a new one below runs/ when left out), beside a run directory
    per variant. Raises InputError when the variants cannot be compared, RunFailed when one of them fails,
    Interrupted when it is stopped.
    """
    launch, options_ = options.checked(launch or LaunchConfig()), options.checked(options_ or CompareConfig())
    if len(variants) != 2:
        raise InputError(f"a comparison takes two variants, baseline first; got {len(variants)}: {', '.join(variants)}.")
    first, second = variants.values()
    for name in ("batch_size", "image_size", "sequence_length", "seed", "data_dir", "lr", "weight_decay", "warmup_steps"):
        if getattr(first, name) != getattr(second, name):
            raise InputError(f"variants must have the same {name}: {getattr(first, name)} and {getattr(second, name)}.")
    memory.check(first, launch.nproc_per_node, compared=2)  # two variants, or one in float64
    warmup = max(first.warmup_steps, options_.parity_steps, parity.PROBE_BATCHES)
    total_steps = warmup + options_.rounds * options_.block_steps
    task_name = first.model.rsplit(":", 1)[-1]
    folder = folder or paths.new_run_dir(f"compare-{task_name}-{launch.nproc_per_node * launch.nnodes}p")
    configs = {
        name: dataclasses.replace(c, run_dir=str(folder / name), max_steps=total_steps, epochs=None, warmup_steps=warmup, log_interval=1)
        for name, c in variants.items()
    }
    world_size = launch.nproc_per_node * launch.nnodes
    bar = Progress(f"{task_name} on {world_size} process(es)", 2 * total_steps, enabled=progress)
    server = TurnServer()
    jobs: dict[str, Job] = {}
    turn = "starting"
    check = _checker(jobs, bar, lambda: f"{task_name}: {turn}")
    try:
        exact_config = reference.configuration(
            dataclasses.replace(next(iter(configs.values())), run_dir=str(folder / "reference")), options_.parity_steps
        )
        exact = reference.kept_reference(exact_config, world_size)
        if exact is None:
            bar.update(bar.count, f"{task_name}: reference in float64")
            exact = reference.run_reference(exact_config, launch)
        for name, config in configs.items():
            role = Role(name, server.address, warmup, options_.block_steps, parity.PROBE_BATCHES)
            turn = f"{name} starts"
            jobs[name] = start(config, launch, module=WORKER, environment=role.environment(), torchrun=False)
            server.wait_idle(name, world_size, check)
        names = list(configs)
        probes = [probe.load(folder / name / PROBE_FILE) for name in names]
        if exact.kept and not exact.belongs_to(probes[0]):
            bar.update(bar.count, f"{task_name}: reference in float64, anew")
            exact = reference.run_reference(exact_config, launch)
        for number in range(options_.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                turn = f"{name}, turn {number + 1} of {options_.rounds}"
                server.go(name)
                server.wait_idle(name, world_size, check)
        results: dict[str, Results] = {}
        for name in names:
            turn = f"{name} is evaluated"
            bar.update(bar.count, f"{task_name}: {turn}")
            server.go(name)
            finished = jobs[name].result()
            assert finished is not None
            results[name] = finished
        bar.update(bar.count, f"{task_name} on {world_size} process(es)")
    finally:
        bar.close()
        server.close()
        for job in jobs.values():
            job.stop()
    rounds = {name: rounds_of(each_step_seconds(folder / name), warmup, options_.block_steps) for name in names}
    verdict_of_parity = _judge(names, results, probes, exact, options_.parity_steps)
    speedup = None
    if verdict_of_parity.passed:
        speedup = stats.ratio_of_medians(rounds[names[0]], rounds[names[1]], confidence=options_.confidence)
    outcome = Comparison(
        task=first.model,
        folder=str(folder),
        variants=results,
        speedup=speedup,
        parity=verdict_of_parity,
        break_even_steps=break_even_steps(results[names[0]], results[names[1]]) if speedup else None,
        verdict=speedup.verdict if speedup else "not comparable",
        chance=_chance(first),
    )
    for name in names:
        (folder / name / PROBE_FILE).unlink()
    write_json(folder / "comparison.json", outcome.as_json())
    return outcome


def _chance(config: TrainConfig) -> dict[str, float]:
    return tasks.get(config.model).chance(tasks.data_of(config))


def compare_backend(
    config: TrainConfig, launch: LaunchConfig | None = None, options_: CompareConfig | None = None, *, progress: bool = True
) -> Comparison:
    """The task as `baseline` and with the accelerated backend, `compiler-opt`, everything else equal."""
    variants = {
        "baseline": dataclasses.replace(config, compiler_opt=False, save_weights=False),
        "compiler-opt": dataclasses.replace(config, compiler_opt=True),
    }
    return compare(variants, launch, options_, progress=progress)


def read_comparison(folder: Path | str) -> Comparison:
    """A comparison read back from its folder. Raises InputError when there is none."""
    path = Path(folder) / "comparison.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: that comparison did not finish.") from None
    checks = [parity.Check(**{**c, "worst": float(c["worst"]), "limit": float(c["limit"])}) for c in values["parity"]["checks"]]
    speedup = stats.Ratio(**values["speedup"]) if values["speedup"] else None
    return Comparison(
        task=values["task"],
        folder=str(folder),
        variants={name: Results(**results) for name, results in values["variants"].items()},
        speedup=speedup,
        parity=parity.Parity(values["parity"]["passed"], checks),
        break_even_steps=values["break_even_steps"],
        verdict=values["verdict"],
        chance=values["chance"],
    )
