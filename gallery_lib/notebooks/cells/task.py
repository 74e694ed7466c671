"""What the cells of a task's notebook, of `your_model` and of the index call, as `notebook`.

    from gallery_lib import notebook
    settings = notebook.settings("resnet50")

`settings` checks the parameters and completes them; `with_your_code` takes what the cells define.
Training and comparisons run in processes of their own; a waterfall takes minutes, so it is kept, by
code, options, versions and machine. The `show_…` functions display a table as Markdown and a figure
as PNG with alternative text (display.py); details that not every reader needs are folded.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gallery_lib.config import LaunchConfig, NotebookConfig, TrainConfig
from gallery_lib.console.text import number
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.notebooks.cells.display import (
    NotMeasured,
    display_chart,
    display_markdown,
    display_table,
)
from gallery_lib.notebooks.cells.task_settings import Settings, checked, completed, process_count
from gallery_lib.notebooks.cells.your_code import with_your_code, your_settings
from gallery_lib.report import tables
from gallery_lib.system import hardware, paths
from gallery_lib.system.hardware import library_version
from gallery_lib.system.machine_load import Watch

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from gallery_lib.measure.bench_result import Bench
    from gallery_lib.measure.comparison.result import Comparison
    from gallery_lib.measure.step_profile import StepProfile

__all__ = [
    "Settings",
    "compare",
    "compare_on_several",
    "launch",
    "loader",
    "make_data",
    "measure_techniques",
    "on_device",
    "profile",
    "settings",
    "show_comparison",
    "show_data",
    "show_losses",
    "show_machine",
    "show_model",
    "show_profile",
    "show_scaling",
    "show_source",
    "show_techniques",
    "show_techniques_added",
    "show_throughput",
    "show_training",
    "with_your_code",
    "your_settings",
]


def __dir__() -> list[str]:
    """Return the names that completion offers in a notebook."""
    return __all__


# Libraries of models import tqdm. It warns, as of an error, where ipywidgets is missing, which
# nothing here needs.
warnings.filterwarnings("ignore", "IProgress not found")

_LIBRARIES = ("torchvision", "timm", "transformers", "gallery_lib")
_RECURRENT = ("LSTM", "GRU", "RNN")
_STEPS = 6
"""Training steps of a run: enough to see that it trains."""
_ALL_OTHERS = "all others"
_WATERFALL_ROUNDS = 4


def settings(task_name: str, parameters: dict[str, Any] | None = None) -> Settings:
    """Check the notebook's parameters, complete and show them, and return the settings.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an unknown parameter, a wrong type or an impossible value; it stops the
            notebook.
    """
    return completed(task_name, checked(NotebookConfig, parameters))


def show_machine() -> None:
    """Show this machine, the software on it, and what follows from both."""
    facts = hardware.machine_facts()
    versions = {name: library_version(name) for name in _LIBRARIES}
    software = [f"{name} {version}" for name, version in versions.items() if version]
    display_markdown(
        f"- **This machine**: {hardware.describe(facts)}.\n"
        f"- **Software**: {', '.join(software)}.\n"
        f"- **To know**: {' '.join(_notes(facts))}"
    )


def _notes(facts: Mapping[str, Any]) -> list[str]:
    """Return what follows from the facts for the figures of a notebook."""
    notes = []
    if facts["device"] == "cpu":
        notes.append("There is no GPU here: GPU figures are **not measured**.")
        if not hardware.computes_in_bf16("cpu"):
            notes.append(
                "This CPU has no bfloat16 units: O1 is slower than O0 here, so `amp_level=auto` "
                "chooses O0."
            )
    if hardware.cpp_compiler() is None:
        notes.append(
            "There is no C++ compiler here, which compiling for the CPU needs: install g++."
        )
    return notes or ["The GPU computes, and `amp_level=auto` chooses O1."]


# --------------------------------------------------------------------------------------------------
# Data, and the model in this kernel: its source and size, plain training, where time goes


def make_data(settings: Settings) -> None:
    """Make the task's mock data, or find it complete; data of the reader's own are only named.

    It is the command that `prepare.sh` runs, and goes on where it was interrupted.

    Raises:
        InputError: without a checkout, which has the command.
        RunFailed: when the command fails.
    """
    from gallery_lib.launcher.job import run_script

    if settings.train.data_dir:
        display_markdown(f"The data are yours, in `{settings.train.data_dir}`.")
        return
    root = paths.checkout()
    if root is None:
        raise InputError(
            "data_prep/ lies beside the notebooks in a checkout, and gallery_lib is installed "
            "without one here. Give a folder as data_dir.",
            parameter="data_dir",
        )
    run_script(root / "data_prep" / f"{settings.task.data_commands[0]}.py")


def show_data(settings: Settings) -> None:
    """Show how much data there is, and some training images as the model sees them."""
    from gallery_lib import tasks
    from gallery_lib.report import plots

    splits: Any = tasks.data_of(settings.train)
    notices = "".join(f"\n- {line}" for line in splits.notices())
    display_markdown(
        f"{len(splits.train):,} items to train on, {len(splits.held_out):,} held out."
        + (f"\n{notices}" if notices else "")
    )
    if settings.task.data_examples is not None:
        display_chart(plots.images(settings.task.data_examples(splits)))


def loader(settings: Settings) -> DataLoader[Any]:
    """Return torch's DataLoader over the training data.

    It is shuffled with the notebook's seed, so two loaders give the same batches.
    """
    import torch
    from torch.utils.data import DataLoader

    from gallery_lib import tasks
    from gallery_lib.data.loading.samplers import LengthBucketSampler

    train, task = tasks.with_sizes(settings.train), settings.task
    assert train.batch_size is not None
    data: Any = tasks.data_of(train).train
    items = max(1, train.batch_size // task.samples_per_item)
    generator = torch.Generator().manual_seed(train.seed)
    lengths = getattr(data, "lengths", None)
    sampler = None if lengths is None else LengthBucketSampler(lengths, items, generator)
    return DataLoader(
        data,
        batch_size=items,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        collate_fn=getattr(data, "collate", None),
        generator=generator,
    )


def on_device(batches: Iterable[Any], device: torch.device) -> Iterable[Any]:
    """Return the batches of a loader as the model takes them, on the device."""
    import torch

    from gallery_lib.data.loading.device_loader import DeviceLoader

    return DeviceLoader(batches, device, torch.contiguous_format, shard=False)


def show_training(**curves: Sequence[float]) -> None:
    """Show the losses of training in this notebook, a curve for each name.

    The steps are two passes over the same batches. The title says whether the losses of the second
    pass are smaller.

    Raises:
        InputError: for a curve without losses.
    """
    from gallery_lib.report import plots

    if empty := [name for name, losses in curves.items() if not losses]:
        raise InputError(f"{empty[0]} has no losses: does `train` return them?", parameter=empty[0])
    chart = plots.training(curves)
    display_chart(chart)
    if not all(map(plots.fell, curves.values())):
        display_markdown(
            f"**{chart.title}.** Look at the loss, the optimizer and the loop above before you go "
            "on: what does not learn here does not learn below either."
        )


def show_source(code: Any) -> None:
    """Show the source of a class or function: a library's, or the gallery's own."""
    source = textwrap.dedent(inspect.getsource(code)).rstrip()
    name = f"{code.__module__}.{code.__qualname__}"
    display_markdown(f"`{name}`\n\n```python\n{source}\n```")


def show_model(
    settings: Settings, model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]
) -> None:
    """Show the number of the model's parameters, and the operations of a step.

    Operations are those of matrix products, convolutions and attention, forward and backward, as
    torch counts them on one batch.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gallery_lib import tasks

    batch = next(iter(on_device(loader(settings), torch.device("cpu"))))
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        loss(model, batch).backward()
    model.zero_grad(set_to_none=True)
    flops = counter.get_total_flops() / (tasks.with_sizes(settings.train).batch_size or 1)
    total = sum(p.numel() for p in model.parameters())
    recurrent = any(type(module).__name__ in _RECURRENT for module in model.modules())
    without = " The recurrent layers are not in it: torch does not count them." if recurrent else ""
    display_markdown(
        f"{number(total / 1e6)} million parameters. One sample takes {number(flops / 1e9)} GFLOP, "
        f"forward and backward.{without}"
    )


def profile(
    train: Callable[..., Any], model: Any, batches: Sequence[Any], optimizer: Any
) -> StepProfile:
    """Train on the last two of `batches` under torch's profiler, and return where the time went.

    It costs two more training steps.
    """
    from gallery_lib.measure.step_profile import profile_steps

    last = list(batches)[-2:]
    return profile_steps(lambda: train(model, last, optimizer), len(last))


def show_profile(**profiles: StepProfile) -> None:
    """Show the ten largest groups of operators of a step, or of two steps side by side.

    Args:
        **profiles: by name, in order; the groups are those of the first.
    """
    from gallery_lib.report import plots

    display_chart(plots.profile(profiles))


# --------------------------------------------------------------------------------------------------
# Runs and comparisons


def compare(settings: Settings, processes: int) -> Comparison:
    """Compare the baseline with the accelerated backend on `processes` processes, in turns."""
    from gallery_lib.measure.comparison.compare import compare_backend

    return compare_backend(settings.train, LaunchConfig(nproc_per_node=processes), settings.compare)


def _per_process_config(settings: Settings, processes: int) -> TrainConfig:
    """Return the run's options with the batch size of one of several processes.

    Each GPU takes a whole batch. Processes that share the cores of one CPU share the batch as well.
    """
    from gallery_lib import tasks

    if processes == 1 or hardware.device_type() != "cpu":
        return settings.train
    together = tasks.with_sizes(settings.train).batch_size or 1
    item = settings.task.samples_per_item
    return dataclasses.replace(
        settings.train, batch_size=max(1, together // item // processes) * item
    )


def compare_on_several(settings: Settings) -> Comparison | NotMeasured:
    """Compare on all devices, without evaluation.

    Returns NotMeasured for one process, or too little memory for two variants on several.
    """
    from gallery_lib.tasks import memory_estimate

    if settings.processes == 1:
        reason = "this machine has one device, so there is no run on several."
        if process_count(None) > 1:
            reason = "several share a CPU's cores, and gain nothing. Set `processes` to 2 to see."
        return NotMeasured(reason)
    train = dataclasses.replace(_per_process_config(settings, settings.processes), evaluate=False)
    try:
        return compare(dataclasses.replace(settings, train=train), settings.processes)
    except memory_estimate.DoesNotFit as error:
        return NotMeasured(str(error))


def show_comparison(comparison: Comparison | NotMeasured) -> None:
    """Show the verdict, with the tables folded."""
    if isinstance(comparison, NotMeasured):
        comparison.show()
    else:
        display_markdown(tables.comparison_markdown(comparison))


def show_throughput(comparison: Comparison) -> None:
    """Show the throughput since launch."""
    from gallery_lib.report import plots

    display_chart(plots.throughput(comparison))


def show_losses(comparison: Comparison) -> None:
    """Show the loss curves of both variants."""
    from gallery_lib.report import plots

    display_chart(plots.losses(comparison))


def show_scaling(one: Comparison, several: Comparison | NotMeasured) -> None:
    """Show one process beside several: total rates, and how well the rates add up."""
    if isinstance(several, NotMeasured):
        several.show()
    else:
        display_markdown(tables.scaling_markdown(one, several))


def show_techniques(comparison: Comparison) -> None:
    """Show what the backend did in this run."""
    display_table([["technique", "in this run"], *comparison.candidate.techniques.items()])


def launch(settings: Settings, *, processes: int, compiler_opt: bool) -> None:
    """Run `launch_single_task.py` for a few steps with the notebook's options, and show the losses.

    The exact command is shown. Processes that share the cores of one CPU share the batch.

    Args:
        settings: the notebook's settings.
        processes: how many train together, with DistributedDataParallel.
        compiler_opt: the accelerated backend, as `--compiler-opt` asks for it.

    Raises:
        InputError: for options that cannot work here.
        RunFailed: when a process fails.
    """
    from gallery_lib.launcher.job import launch as launch_job

    train = dataclasses.replace(
        _per_process_config(settings, processes),
        compiler_opt=compiler_opt,
        evaluate=False,
        max_steps=_STEPS,
        warmup_steps=1,
    )
    run = launch_job(train, LaunchConfig(nproc_per_node=processes), show_log=False)
    assert run is not None
    first, last = (number(run.loss[name] or math.nan) for name in ("first", "last"))
    display_markdown(
        f"{run.world_size} process(es), {'with' if compiler_opt else 'without'} `--compiler-opt`: "
        f"loss {first} → {last} in {run.steps} steps, start-up "
        f"{number(run.startup_seconds['total'])} s"
    )


# --------------------------------------------------------------------------------------------------
# The techniques that matter for a model, one after another


def measure_techniques(settings: Settings, *techniques: str) -> Bench | None:
    """Return the task's steps with one technique after another, measured in turns, or kept.

    Returns None where the notebook's parameter `waterfall` says that nothing be measured. What was
    measured while other processes were at work is shown with a remark, and not kept.

    Args:
        settings: the notebook's settings.
        *techniques: the techniques, in the order in which they are added. All others follow as one.

    Raises:
        RunFailed: when nothing could be measured.
    """
    from gallery_lib import memory
    from gallery_lib.measure import bench
    from gallery_lib.measure.bench import waterfall_of
    from gallery_lib.measure.bench_result import Bench, read_bench, write_bench
    from gallery_lib.measure.variants import TECHNIQUES

    if not settings.waterfall:
        return None
    added = {name: [name] for name in techniques}
    if others := [name for name in TECHNIQUES if name not in techniques]:
        added[_ALL_OTHERS] = others
    compare = dataclasses.replace(
        settings.compare, rounds=min(settings.compare.rounds, _WATERFALL_ROUNDS)
    )
    plan = waterfall_of(dataclasses.replace(settings.train, evaluate=False), compare, added)
    digest = bench.digest_of(plan)
    kept, name = paths.cache_dir() / "waterfalls" / f"{digest}.json", settings.name
    if kept.is_file():
        result = read_bench(kept)
        display_markdown(
            f"Measured on {next(iter(result.tasks.values())).date[:10]} on this machine, with this "
            f"code and these options. To measure anew, delete `{kept}`."
        )
        return result
    memory.trim()  # what follows trains in other processes
    watch = Watch()
    folder = paths.new_run_dir(f"waterfall-{name}")
    outcome = bench.measure_task(plan, digest, folder, at_pause=watch.at_pause)
    if outcome.reason is not None:
        raise RunFailed(f"the techniques could not be measured: {outcome.reason}")
    result = Bench(
        kind="waterfall",
        command="",
        options=dict(outcome.sizes),
        environment=hardware.machine_facts(),
        versions=bench.versions(),
        tasks={name: outcome},
    )
    load = watch.seen()
    is_busy = bool(load.reasons())
    if sentence := load.sentence():
        display_markdown(f"{sentence} These figures are not kept." if is_busy else sentence)
    if not is_busy and all(
        row.reason is None or key in plan.absent for key, row in outcome.rows.items()
    ):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bench(kept, result)
    return result


def show_techniques_added(bench: Bench | None) -> None:
    """Show what each technique adds to what `measure_techniques` returned, as figure and table."""
    from gallery_lib.report.bench import chart

    if bench is None:
        NotMeasured("the parameter `waterfall` is False. Set it to True, and run all.").show()
    else:
        display_chart(chart(bench), fold=False)
