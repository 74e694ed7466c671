"""Functions for the notebook `communication`: step times and gradients on a lab, and learning.

Step times show the effect of each technique on a lab. Learning shows what a model learns with each
wire format. Where this machine cannot have a lab, the lab's figures are shown as not measured, with
the reason, and the other cells go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gallery_lib.config import CommunicationNotebookConfig, ConvergenceConfig, StrategiesConfig
from gallery_lib.notebooks.cells.display import (
    NotMeasured,
    display_chart,
    display_markdown,
    display_table,
)
from gallery_lib.notebooks.cells.task_settings import checked
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
    from gallery_lib.cluster import network

    network.bits_per_second(config.rate)
    display_table([["setting", "value"], *([name, f"{v}"] for name, v in vars(config).items())])
    return config


def measure_effects(settings: CommunicationNotebookConfig) -> Effects | NotMeasured:
    """Measure the techniques in turns on a lab, which is created for it and removed afterwards.

    Returns NotMeasured where this machine cannot have a lab.
    """
    from gallery_lib.cluster import Lab, LabUnavailable
    from gallery_lib.measure.communication import strategies
    from gallery_lib.measure.communication.launch import run_on_lab

    turns = StrategiesConfig(rounds=settings.rounds, block_steps=settings.block_steps)
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
    """Show by technique the step times, the bytes, and whether the gradients are right."""
    if isinstance(effects, NotMeasured):
        effects.show()
        return
    from gallery_lib.report import communication

    display_table(communication.parity_rows(effects))
    display_chart(communication.step_times(effects))
    display_markdown(
        f"{effects.parameters:,} parameters; {effects.hosts}, an {communication.EMULATED}. "
        f"{hardware.describe(hardware.machine_facts())}."
    )


def learn_digits(settings: CommunicationNotebookConfig) -> Scores:
    """Train with every wire format, in two processes on this host; return the scores."""
    from gallery_lib.measure.communication import convergence

    return convergence.measured(ConvergenceConfig(seeds=2, epochs=settings.epochs))


def show_learned(scores: Scores) -> None:
    """Show what each wire format has learned."""
    from gallery_lib.report import communication

    display_table(communication.learned_rows(scores))
