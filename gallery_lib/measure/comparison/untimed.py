"""Runs of a measurement that take no turns: the float64 reference, and second runs of variants.

The reference does the first steps and the gradient probe eager, in float64. It is kept in the cache
folder, by all that it depends on: task, options, the code that trains, and library versions.
Digests of the initial weights and of the first batches, which every run records, decide whether it
really belongs to a comparison. Changed data makes it be run again.

Second runs train all steps of a variant again on the same batches, from weights that are moved by
about a rounding of the precision. They tell how far rounding alone carries the training. They are
made where a check fails or curves part, and not kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import shutil
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gallery_lib
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.launcher.job import start
from gallery_lib.measure.comparison.interleaved import Turns, Variant, configuration
from gallery_lib.measure.comparison.worker import (
    PROBE_BATCHES,
    PROBE_FILE,
    REFERENCE,
    SECOND,
    WORKER,
    Role,
    differences_of_start,
)
from gallery_lib.optim import WITH_LENGTH
from gallery_lib.system import hardware, paths
from gallery_lib.system.files import atomic_write
from gallery_lib.system.hardware import library_version
from gallery_lib.train.results import read_results

_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "numpy")
_IRRELEVANT = (
    *("run_dir", "compiler_opt", "kernels", "tune", "amp_level", "amp_dtype", "workers", "threads"),
    *("log_interval", "terminate_on_nan", "rank_timeout"),
    *("checkpoint_every", "keep", "resume"),
)
# Code that a reference depends on, as rooms and modules of the package.
_TRAINS_EAGER = (
    *("tasks", "data", "optim", "train", "acceleration", "comm"),
    *("measure/comparison/worker", "measure/comparison/first_pass", "tune/choice"),
)
_LOOK_SECONDS = 0.2


def run_part(
    config: TrainConfig,
    launch: LaunchConfig,
    module: str,
    environment: Mapping[str, str],
    progress: Progress,
    *,
    label: str,
    part: str,
) -> None:
    """Run `module` in each process to its end, in the folder of `config`.

    Progress shows `label, part` and the phase.

    Raises:
        InputError: the request makes no sense.
        RunFailed: a process has failed.
    """
    job = start(config, launch, module=module, environment=environment)
    try:
        view = job.view(progress, f"{label}, {part}")
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        job.result()
    finally:
        job.stop()


@dataclass(frozen=True)
class Untimed:
    """Losses and gradient probe of a run without turns, which may be `kept` from an earlier one."""

    losses: list[float | None]
    probe: dict[str, Any]
    kept: bool = False


def reference_config(config: TrainConfig, parity_steps: int) -> TrainConfig:
    """Return the options of the reference run for a variant's `config`.

    It sees as many batches as variants probe. Its schedule of the learning rate goes over the
    variants' steps.
    """
    schedule_steps = config.lr_schedule_steps
    if config.lr_schedule in WITH_LENGTH:
        schedule_steps = schedule_steps or config.max_steps
    return dataclasses.replace(
        config,
        compiler_opt=False,
        amp_level="O0",
        max_steps=max(parity_steps, PROBE_BATCHES),
        lr_schedule_steps=schedule_steps,
        warmup_steps=0,
        evaluate=False,
        workers=1 if config.workers is None else config.workers,  # for a few batches
    )


def _digest(config: TrainConfig, facts: Any, code: tuple[str, ...]) -> str:
    """Return a digest of the options that matter, more facts, code, versions and the processor."""
    package = Path(gallery_lib.__file__).parent
    sources = {
        path
        for name in code
        for path in (*package.glob(f"{name}.py"), *(package / name).rglob("*.py"))
    }
    if ".py:" in config.model:
        sources.add(Path(config.model.rsplit(":", 1)[0]))
    relevant = {
        name: value for name, value in dataclasses.asdict(config).items() if name not in _IRRELEVANT
    }
    versions = {name: library_version(name) or "none" for name in _LIBRARIES}
    everything = [relevant, facts, platform.python_version(), hardware.processor(), versions]
    digest = hashlib.sha256(json.dumps(everything, sort_keys=True).encode())
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def measured_key(config: TrainConfig, *facts: Any) -> str:
    """Return a digest of all that a measured figure depends on: `facts`, and the whole package."""
    machine = [hardware.cores(), hardware.gpu_count(), hardware.gpu_names()]
    return _digest(config, [*facts, *machine], (".",))  # the folder of the package


def reference_file(config: TrainConfig, world_size: int) -> Path:
    """Return where the reference of these options is kept."""
    key = _digest(config, world_size, _TRAINS_EAGER)
    return paths.cache_dir() / "references" / f"{key}.pt"


def kept_reference(file: Path) -> Untimed | None:
    """Return the reference that an earlier comparison kept, or None; a damaged one counts as none.

    torch.load does not notice damage, but the file is a zip archive with checksums.
    """
    try:
        if zipfile.ZipFile(file).testzip() is not None:
            return None
        return Untimed(**torch.load(file, weights_only=True), kept=True)
    except (OSError, zipfile.BadZipFile):
        return None


class UntimedRuns:
    """The runs without turns of one comparison, each made at most once, below `folder`.

    The baseline comes first among `variants`. Progress shows `label`.
    """

    def __init__(
        self,
        variants: Mapping[str, Variant],
        launch: LaunchConfig,
        compare: CompareConfig,
        folder: Path,
        progress: Progress,
        label: str,
    ) -> None:
        self._variants, self._launch, self._folder = variants, launch, folder
        self._progress, self._label = progress, label
        first = next(iter(variants.values())).config
        self._turns = Turns.of(first, compare)
        self._config = reference_config(
            configuration(first, self._turns, folder / "reference"),
            compare.parity_steps,
        )
        self._file = reference_file(self._config, launch.nproc_per_node)
        self._reference: Untimed | None = None
        self._second: dict[tuple[str, int], Untimed] = {}

    def reference(self, variant: dict[str, Any] | None = None) -> Untimed:
        """Return the reference: the kept one, or one that is run now and kept.

        A kept one has to belong to `variant`, the probe of a variant that has just run.
        """
        found = self._reference or kept_reference(self._file)
        changed = found and found.kept and variant and differences_of_start(found.probe, variant)
        if found is None or changed:
            found = self._run(self._config, Role(REFERENCE), {}, self._label)
            with contextlib.suppress(OSError):  # without a cache, it runs again next time
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(self._file, "wb") as file:
                    torch.save({"losses": found.losses, "probe": found.probe}, file)
        self._reference = found
        return found

    def again(self, name: str, move: int = 0) -> Untimed:
        """Return a second run of a variant: its losses of all steps, and its probe.

        `move` is the seed of the rounding by which its weights are moved.
        """
        if (name, move) not in self._second:
            variant = self._variants[name]
            config = dataclasses.replace(
                configuration(variant.config, self._turns, self._folder / f"{name}-again{move}"),
                evaluate=False,
            )
            role = Role(SECOND, recipe=list(variant.recipe), move=move)
            label = f"{self._label}, {name}"
            self._second[name, move] = self._run(config, role, variant.environment, label)
        return self._second[name, move]

    def _run(
        self, config: TrainConfig, role: Role, environment: Mapping[str, str], label: str
    ) -> Untimed:
        """Run to the end, and return losses and probe; the run's folder is removed."""
        assert config.run_dir is not None
        run_dir, variables = Path(config.run_dir), {**environment, **role.variable()}
        run_part(
            config, self._launch, WORKER, variables, self._progress, label=label, part=role.name
        )
        losses = [loss for _, loss in read_results(run_dir).loss["curve"]]
        result = Untimed(losses, torch.load(run_dir / PROBE_FILE, weights_only=True))
        shutil.rmtree(run_dir)
        return result
