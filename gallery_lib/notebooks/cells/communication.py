"""Functions for the notebook `communication`: bytes on the wire, step times on a lab, learning.

Step times show the effect of each technique on a lab. Learning shows what a model learns with each
wire format. Where this machine cannot have a lab, the lab's figures are shown as not measured, with
the reason, and the other cells go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gallery_lib.config import (
    Comm,
    CommunicationNotebookConfig,
    ConvergenceConfig,
    StrategiesConfig,
)
from gallery_lib.notebooks.cells.display import (
    NotMeasured,
    display_chart,
    display_markdown,
    display_table,
)
from gallery_lib.notebooks.cells.kernel_parameters import checked
from gallery_lib.system import hardware

if TYPE_CHECKING:
    from gallery_lib.measure.communication.convergence import Scores
    from gallery_lib.measure.communication.strategies import Effects


def settings(parameters: dict[str, Any] | None = None) -> CommunicationNotebookConfig:
    """Check the notebook's parameters, show them and return them.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an impossible value.
    """
    config = checked(CommunicationNotebookConfig, parameters)
    from gallery_lib import tasks
    from gallery_lib.cluster import link_rate

    link_rate.bits_per_second(config.rate)
    tasks.get(config.model)
    display_table([["setting", "value"], *([name, f"{v}"] for name, v in vars(config).items())])
    return config


def show_bytes(settings: CommunicationNotebookConfig) -> None:
    """Show what each host sends in a step of the task, by wire format.

    The bytes are computed from the shapes of the task's parameters.
    """
    import torch

    from gallery_lib import tasks
    from gallery_lib.cluster import link_rate
    from gallery_lib.measure.communication import strategies
    from gallery_lib.report import communication

    with torch.device("meta"):  # shapes without values
        shapes = strategies.shapes_of(tasks.get(settings.model).build_model())
    formats = {
        "fp32": Comm(),
        "bf16 or fp16": Comm(wire="bf16"),
        "int8": Comm(wire="int8"),
        "PowerSGD": Comm(wire="powersgd"),
    }
    sent = {
        name: strategies.sent_bytes(shapes, format, settings.hosts)
        for name, format in formats.items()
    }
    parameters = sum(torch.Size(shape).numel() for shape in shapes)
    title, rate = tasks.get(settings.model).title, link_rate.bits_per_second(settings.rate)
    display_chart(communication.bytes_sent(title, settings.hosts, rate, sent))
    display_markdown(
        f"{parameters:,} parameters in {len(shapes)} tensors; one process on each of "
        f"{settings.hosts} hosts. Computed, not measured: without what TCP adds, and without the "
        "time that rounding takes."
    )


def measure_effects(settings: CommunicationNotebookConfig) -> Effects | NotMeasured:
    """Measure the techniques in turns on a lab, which is created for it and removed afterwards.

    Returns NotMeasured where this machine cannot have a lab.
    """
    from gallery_lib.cluster import Lab, LabUnavailable
    from gallery_lib.measure.communication import strategies
    from gallery_lib.measure.communication.launch import run_on_lab

    turns = StrategiesConfig(
        width=settings.width, rounds=settings.rounds, block_steps=settings.block_steps
    )
    try:
        with Lab(hosts=settings.hosts, rate=settings.rate) as lab:
            print(
                f"a lab of {settings.hosts} hosts at {settings.rate} each (emulated links), "
                f"CPU shares: {lab.cpu_share}",
                flush=True,
            )
            return strategies.Effects.of(
                run_on_lab(lab, strategies.__name__, turns, settings.processes)
            )
    except LabUnavailable as error:
        return NotMeasured(str(error))


def show_effects(effects: Effects | NotMeasured) -> None:
    """Show the step times of each technique."""
    if isinstance(effects, NotMeasured):
        effects.show()
        display_markdown(
            "Run this notebook where a lab can be made, or compare on your own machines with "
            "`benchmarks/network.py train`."
        )
        return
    from gallery_lib.report import communication

    display_chart(communication.step_times(effects))
    notes = [
        f"{effects.parameters:,} parameters; {effects.hosts}, an "
        f"{communication.EMULATED}. {hardware.describe(hardware.machine_facts())}."
    ]
    if effects.processes_on_each == 1:
        notes.append(
            "Hierarchical averaging does not apply: there is one process on each host (parameter "
            "`processes`)."
        )
    display_markdown(" ".join(notes))


def show_parity(effects: Effects | NotMeasured) -> None:
    """Show bytes, computed and counted, and whether the gradients are right, by technique."""
    if isinstance(effects, NotMeasured):
        effects.show()
        return
    from gallery_lib.report import communication

    display_table(communication.parity_rows(effects))


def show_buckets(effects: Effects | NotMeasured) -> None:
    """Show the buckets of a step over time."""
    if isinstance(effects, NotMeasured):
        effects.show()
        return
    from gallery_lib.report import communication

    display_chart(communication.buckets(effects))


def learn_digits(settings: CommunicationNotebookConfig) -> list[Scores]:
    """Train with every wire format, in two processes on this host; return the scores."""
    from gallery_lib.measure.communication import convergence

    return convergence.measured(ConvergenceConfig(seeds=settings.seeds, epochs=settings.epochs))


def show_learned(trainings: list[Scores]) -> None:
    """Show what each wire format has learned."""
    from gallery_lib.report import communication

    display_chart(communication.learned(trainings))
