"""Comparison of two variants of a training run: is the training the same, and what is the speed-up?

First the float64 reference runs, alone, to its end, unless one was kept from an earlier comparison.
Then both variants train in turns (interleaved.py says how) and evaluate. Speeds are only given when
parity holds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from gallery_lib import stats, tasks
from gallery_lib.compiler import cache
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress, shown_on
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison import float64_reference, interleaved, parity
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.interleaved import Measured, Turns, Variant
from gallery_lib.measure.comparison.machine_load import Watch
from gallery_lib.measure.comparison.result import Comparison, Parity, break_even_steps
from gallery_lib.system import paths
from gallery_lib.system.json_files import write_json
from gallery_lib.system.processes import interruptible
from gallery_lib.tasks import memory_estimate


def judge(baseline: Measured, candidate: Measured, exact: Reference, steps: int) -> Parity:
    """Return whether two variants compute the same training.

    What counts are the first `steps` losses and the probed gradients.
    """
    levels = [variant.results.config["amp_level"] for variant in (baseline, candidate)]
    losses = [
        [loss for _, loss in variant.results.loss["curve"][:steps]]
        for variant in (baseline, candidate)
    ]
    triples = (losses[0], losses[1], exact.losses), (baseline.probe, candidate.probe, exact.probe)
    return parity.judge(
        *triples,
        levels[1],
        same_precision=levels[0] == levels[1],
        diverged={
            "the baseline": baseline.results.diverged_at,
            "the candidate": candidate.results.diverged_at,
        },
    )


Pair = tuple[Measured, Measured]
"""A baseline and a candidate that took turns with one another."""


def judge_all(pairs: Sequence[Pair], exact: Reference, steps: int) -> Parity:
    """Return the parity of two variants that were started several times: it must hold each time.

    The result is that of the first start that lacks parity, otherwise that of the first start.
    """
    judged = [judge(before, after, exact, steps) for before, after in pairs]
    return next((each for each in judged if not each.passed), judged[0])


def speedup_of_all(pairs: Sequence[Pair], confidence: float) -> stats.Ratio:
    """Return the geometric mean of the speed-ups of two variants over several starts."""
    return stats.geometric_mean(
        [interleaved.ratio(before, after, confidence) for before, after in pairs]
    )


@interruptible("the comparison")
def compare(
    variants: dict[str, TrainConfig],
    launch: LaunchConfig | None = None,
    options_: CompareConfig | None = None,
    *,
    folder: Path | None = None,
    progress: bool | Progress = True,
) -> Comparison:
    """Compare two variants of a task; the first is the baseline.

    Both are trained for `warmup_steps + rounds × block_steps` steps from the same weights on the
    same batches, and evaluated. This is done `starts` times: the speed-up is the geometric mean,
    parity must hold each time, and the rest is of the first start. The outcome is also written to
    `comparison.json`, beside a run directory per variant.

    Args:
        variants: options of the two variants by name.
        launch: how their processes are started.
        options_: number of starts, number and size of turns, and limits of the comparison.
        folder: where everything is written; a new one below runs/ when left out.
        progress: whether progress is shown, or a display that is open already.

    Raises:
        InputError: when the variants cannot be compared.
        RunFailed: when one of them fails.
        Interrupted: when the comparison is stopped.
    """
    launch, options_ = (
        options.checked(launch or LaunchConfig()),
        options.checked(options_ or CompareConfig()),
    )
    if len(variants) != 2:
        raise InputError(
            f"a comparison takes two variants, baseline first; got {len(variants)}: "
            f"{', '.join(variants)}."
        )
    if launch.nnodes > 1:
        raise InputError(
            f"nnodes={launch.nnodes}: a comparison runs on one host, "
            "where its variants take turns. "
            "Train each variant with launch_single_task.py on all hosts, or compare on one with "
            "nproc_per_node."
        )
    first, second = variants.values()
    for name in (
        "batch_size",
        "image_size",
        "sequence_length",
        "seed",
        "data_dir",
        "lr",
        "weight_decay",
        "warmup_steps",
    ):
        if getattr(first, name) != getattr(second, name):
            raise InputError(
                f"variants must have the same {name}: {getattr(first, name)} and "
                f"{getattr(second, name)}."
            )
    # Two variants, or one in float64.
    memory_estimate.check(first, launch.nproc_per_node, compared=2)
    watch = Watch()
    probed = parity.probe_batches(config.amp_level for config in variants.values())
    warmup = max(first.warmup_steps, options_.parity_steps, probed)
    task_name = first.model.rsplit(":", 1)[-1]
    folder = folder or paths.new_run_dir(f"compare-{task_name}-{launch.nproc_per_node}p")
    turns = Turns(warmup, options_.rounds, options_.block_steps, probed)
    exact_config = float64_reference.configuration(
        interleaved.configuration(first, turns, folder / "reference"), options_.parity_steps, probed
    )
    runs = {name: Variant(config) for name, config in variants.items()}
    folders = interleaved.folders_of_starts(folder, options_.starts)
    of_reference = f"{task_name}, {float64_reference.PART}"
    with shown_on(progress) as shown:
        exact = float64_reference.reference_for(exact_config, launch, shown, of_reference)
        starts = [
            cache.without_damage(
                functools.partial(
                    interleaved.take_turns,
                    runs,
                    launch,
                    turns,
                    each,
                    shown,
                    task_name,
                    at_pause=watch.at_pause,
                )
            )
            for each in folders
        ]
        baseline, candidate = starts[0].values()
        if exact.kept and not exact.belongs_to(baseline.probe):  # the data have changed
            exact = float64_reference.run_reference(exact_config, launch, shown, of_reference)
    before, after = variants
    pairs = [(start[before], start[after]) for start in starts]
    load = watch.seen({name: variant.rounds for name, variant in starts[0].items()})
    verdict_of_parity = judge_all(pairs, exact, options_.parity_steps)
    speedup = speedup_of_all(pairs, options_.confidence) if verdict_of_parity.passed else None
    outcome = Comparison(
        task=first.model,
        folder=str(folder),
        variants={name: variant.results for name, variant in starts[0].items()},
        speedup=speedup,
        parity=verdict_of_parity,
        break_even_steps=break_even_steps(baseline.results, candidate.results)
        if speedup and speedup.verdict == "faster"
        else None,
        verdict=speedup.verdict if speedup else "not comparable",
        chance=_chance(first),
        confidence=options_.confidence,
        load=load,
    )
    write_json(folder / "comparison.json", outcome.as_json())
    return outcome


def _chance(config: TrainConfig) -> dict[str, float]:
    return tasks.get(config.model).chance(tasks.data_of(config))


def compare_backend(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    options_: CompareConfig | None = None,
    *,
    progress: bool | Progress = True,
) -> Comparison:
    """Compare the task as `baseline` with the accelerated backend, `compiler-opt`.

    Everything else is equal.
    """
    variants = {
        "baseline": dataclasses.replace(config, compiler_opt=False, save_weights=False),
        "compiler-opt": dataclasses.replace(config, compiler_opt=True),
    }
    return compare(variants, launch, options_, progress=progress)
