"""Float64 reference of a comparison: first steps and gradient probe, eager, at O0, in its own run.

It also counts the floating-point operations of a step: nothing is fused or handed to a library that
hides them.

It depends on the task, the options, the code and the library versions alone. So it is kept in the
cache folder and taken from there next time. Digests of the initial weights and of the first
batches, which every run records, decide whether it really belongs to a comparison. Changed data
makes it be run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gallery_lib
from gallery_lib.config import LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison import gradient_probe as probe
from gallery_lib.measure.comparison.gradient_parity import PROBE_BATCHES
from gallery_lib.measure.comparison.worker import PROBE_FILE, REFERENCE, WORKER, Role
from gallery_lib.measure.part import run_part
from gallery_lib.optim.schedules import WITH_LENGTH
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import read_json, set_aside, write_json
from gallery_lib.system.version import library_version
from gallery_lib.train.results import read_results

PART = "reference in float64"
"""Name of the run where it is shown."""

_LOSSES_FILE = "losses.json"
_DIGESTS_FILE = "digests.json"
_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "numpy")
_IRRELEVANT = (
    *("run_dir", "compiler_opt", "kernels", "tune", "amp_level", "amp_dtype", "workers", "threads"),
    *("log_interval", "tensorboard", "terminate_on_nan", "rank_timeout"),
    *("checkpoint_every", "keep", "resume"),
)


@dataclass(frozen=True)
class Reference:
    """Losses of the first steps and the probe, in float64.

    `kept` says that they come from an earlier comparison.
    """

    losses: list[float | None]
    probe: dict[str, Any]
    kept: bool

    def belongs_to(self, variant: dict[str, Any]) -> bool:
        """Return whether the probed `variant` started from the same weights and batches."""
        return not probe.differences_of_start(self.probe, variant)


def configuration(config: TrainConfig, parity_steps: int, probe_batches: int) -> TrainConfig:
    """Return the options of the reference run for a variant's `config`.

    Its steps are so many that it sees as many batches as variants probe. Its schedule of the
    learning rate goes over the variants' steps.
    """
    steps = max(parity_steps, probe_batches)
    schedule_steps = config.lr_schedule_steps
    if config.lr_schedule in WITH_LENGTH:
        schedule_steps = schedule_steps or config.max_steps
    return dataclasses.replace(
        config,
        compiler_opt=False,
        amp_level="O0",
        max_steps=steps,
        lr_schedule_steps=schedule_steps,
        warmup_steps=0,
        evaluate=False,
        save_weights=False,
    )


def key(config: TrainConfig, world_size: int) -> str:
    """Return the name of a kept reference: a digest of all that it depends on.

    These are its options, the package's sources, the versions and the processor.
    """
    package = Path(gallery_lib.__file__).parent
    sources = sorted(package.rglob("*.py"))
    if ".py:" in config.model:
        sources.append(Path(config.model.rsplit(":", 1)[0]))
    relevant = {
        name: value for name, value in options.to_mapping(config).items() if name not in _IRRELEVANT
    }
    facts = [
        relevant,
        world_size,
        platform.python_version(),
        hardware.processor(),
        {name: library_version(name) or "none" for name in _LIBRARIES},
    ]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _read(folder: Path, *, kept: bool) -> Reference:
    """Return the reference in `folder`.

    Raises:
        InputError: for files that are not what was kept.
        ValueError: for files that are not what was kept.
    """
    if kept and read_json(folder / _DIGESTS_FILE, dict[str, str], again="") != _digests(folder):
        raise ValueError("its files are not what was kept")
    return Reference(
        read_json(folder / _LOSSES_FILE, list[float | None], again=""),
        probe.load(folder / PROBE_FILE),
        kept,
    )


def _digests(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in (_LOSSES_FILE, PROBE_FILE)
    }


def kept_reference(config: TrainConfig, world_size: int) -> Reference | None:
    """Return the reference of an earlier comparison with the same options and code, or None.

    A damaged one is set aside.
    """
    folder = paths.cache_dir() / "references" / key(config, world_size)
    if not folder.is_dir():
        return None
    try:
        return _read(folder, kept=True)
    except (InputError, ValueError, OSError) as error:
        set_aside(folder, error)
        return None


def run_reference(
    config: TrainConfig, launch: LaunchConfig, progress: Progress | None = None, label: str = PART
) -> Reference:
    """Run the reference, keep it for the next time, and return it.

    `config` is `configuration(…)` with a run directory, which is removed. The run's phases are
    shown on `progress`, after `label`.
    """
    assert config.run_dir is not None and config.max_steps is not None
    run_dir, world_size = Path(config.run_dir), launch.nproc_per_node
    role = Role(REFERENCE, None, 0, config.max_steps, min(config.max_steps, PROBE_BATCHES))
    run_part(
        config,
        launch,
        module=WORKER,
        environment=role.variable(),
        progress=progress or Progress(enabled=False),
        name=label,
        part=PART,
    )
    losses = [loss for _, loss in read_results(run_dir).loss["curve"]]
    write_json(run_dir / _LOSSES_FILE, losses)
    result = _read(run_dir, kept=False)
    with contextlib.suppress(OSError):  # if the cache cannot be written, it runs again next time
        _keep(run_dir, paths.cache_dir() / "references" / key(config, world_size))
    shutil.rmtree(run_dir)
    return result


def _keep(run_dir: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        for name in (_LOSSES_FILE, PROBE_FILE):
            shutil.copyfile(run_dir / name, new / name)
        write_json(new / _DIGESTS_FILE, _digests(new))
        shutil.rmtree(target, ignore_errors=True)
        with contextlib.suppress(OSError):  # another comparison has just put the same one there
            new.rename(target)


def reference_for(
    config: TrainConfig, launch: LaunchConfig, progress: Progress, label: str = PART
) -> Reference:
    """Return the kept reference, or one that is run now, shown on `progress`."""
    return kept_reference(config, launch.nproc_per_node) or run_reference(
        config, launch, progress, label
    )


def rerun_if_stale(
    reference: Reference,
    variant: dict[str, Any],
    config: TrainConfig,
    launch: LaunchConfig,
    progress: Progress,
    label: str = PART,
) -> Reference:
    """Return `reference`, or run it again if the data have changed since it was kept.

    `variant` is the probe of a variant that has just run.
    """
    if not reference.kept or reference.belongs_to(variant):
        return reference
    return run_reference(config, launch, progress, label)
