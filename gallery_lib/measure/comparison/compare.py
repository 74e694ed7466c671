"""Comparison of two variants of a training run: is the training the same, and what is the speed-up?

First the float64 reference runs, alone, to its end, unless one was kept from an earlier comparison.
Then both variants train in turns (interleaved.py says how) and evaluate. Speeds are only given when
parity holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from gallery_lib import stats, tasks
from gallery_lib.compiler import cache
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress, progress_display
from gallery_lib.console.user_errors import short_name
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison import interleaved, pair
from gallery_lib.measure.comparison.interleaved import Turns, Variant, configuration
from gallery_lib.measure.comparison.result import (
    OTHER_CLOCKS,
    Comparison,
    break_even_steps,
    write_comparison,
)
from gallery_lib.measure.comparison.untimed import UntimedRuns
from gallery_lib.system import hardware, paths
from gallery_lib.system.machine_load import Watch
from gallery_lib.system.processes import interruptible
from gallery_lib.tasks import memory_estimate
from gallery_lib.train import precision, pretrained
from gallery_lib.train.resolved import resolve


def _check_comparable(
    variants: Mapping[str, TrainConfig], launch: LaunchConfig, turns: Turns
) -> None:
    """Raise InputError where the two variants cannot be compared here."""
    if launch.nnodes != 1:
        raise InputError(
            f"nnodes={launch.nnodes}: a comparison runs on one host, "
            "where its variants take turns. "
            "Train each variant with launch_single_task.py on all hosts, or compare on one with "
            "nproc_per_node.",
            parameter="nnodes",
        )
    for config in variants.values():
        for name in ("checkpoint_every", "resume"):
            if getattr(config, name) is not None:
                raise InputError(
                    f"{name}={getattr(config, name)}: a comparison is of undisturbed steps, and a "
                    "run that was resumed or saves checkpoints has others. Leave it out.",
                    parameter=name,
                )
        run_dir = config.run_dir or "."
        resolve(configuration(config, turns, Path(run_dir)), local_processes=1, run_dir=run_dir)
    baseline = next(iter(variants.values()))
    if baseline.pretrained is not None:
        pretrained.read_weights(Path(baseline.pretrained))
    # Two variants, or one in float64.
    memory_estimate.check(baseline, launch.nproc_per_node, compared=2)


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
    same batches, and evaluated. The outcome is also written to `comparison.json`, beside a run
    directory per variant.

    Args:
        variants: options of the two variants by name.
        launch: how their processes are started.
        options_: number and size of turns.
        folder: where everything is written; a new one below runs/ when left out.
        progress: whether progress is shown, or a display that is open already.

    Raises:
        InputError: when the variants cannot be compared.
        RunFailed: when one of them fails.
        Interrupted: when the comparison is stopped.
    """
    launch = options.checked(launch or LaunchConfig())
    options_ = options.checked(options_ or CompareConfig())
    device = hardware.device_type()
    variants = {
        name: dataclasses.replace(v, amp_level=precision.chosen_level(v.amp_level, device))
        for name, v in variants.items()
    }
    before, after = variants
    config = variants[before]
    turns = Turns.of(config, options_)
    _check_comparable(variants, launch, turns)
    watch, runs = Watch(), {name: Variant(config) for name, config in variants.items()}
    label = short_name(config.model)
    folder = folder or paths.new_run_dir(f"compare-{label}-{launch.nproc_per_node}p")
    with progress_display(progress) as shown:
        untimed = UntimedRuns(runs, launch, options_, folder, shown, label)
        untimed.reference()
        measured = cache.without_damage(
            lambda: interleaved.take_turns(
                runs, launch, turns, folder, shown, label, at_pause=watch.at_pause
            )
        )
        load = watch.seen()
        parity = pair.parity(measured, before, after, options_.parity_steps, untimed)
    results = {name: measured[name].results for name in variants}
    speedup = pair.ratio(measured[before], measured[after], load) if parity.passed else None
    faster = speedup is not None and speedup.verdict == "faster"
    outcome = Comparison(
        task=config.model,
        folder=str(folder),
        variants=results,
        speedup=speedup,
        parity=parity,
        break_even_steps=break_even_steps(*results.values()) if faster else None,
        verdict=speedup.verdict if speedup else parity.verdict or OTHER_CLOCKS,
        chance=tasks.get(config.model).chance(tasks.data_of(config)),
        confidence=stats.CONFIDENCE,
        load=load,
    )
    write_comparison(outcome)
    return outcome


def compare_backend(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    options_: CompareConfig | None = None,
    *,
    progress: bool | Progress = True,
) -> Comparison:
    """Compare the task as `baseline` with the accelerated backend, `compiler-opt`, alone.

    Example:
        >>> from gallery_lib.config import CompareConfig, TrainConfig
        >>> from gallery_lib.measure.comparison.compare import compare_backend
        >>> task = TrainConfig("tts_angular", batch_size=8, sequence_length=16, evaluate=False)
        >>> comparison = compare_backend(task, options_=CompareConfig(rounds=4, block_steps=2))
        >>> list(comparison.variants)
        ['baseline', 'compiler-opt']
    """
    variants = {
        "baseline": dataclasses.replace(config, compiler_opt=False),
        "compiler-opt": dataclasses.replace(config, compiler_opt=True),
    }
    return compare(variants, launch, options_, progress=progress)
