"""Scripts of this folder on the hosts of a lab: replays of timelines, and the memory they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.cluster import Lab, link_rate
from gallery_lib.cluster.run import run as run_on_hosts
from gallery_lib.config import LabConfig, LabRunConfig, ReplayConfig
from gallery_lib.config.command_line import words_of
from gallery_lib.config.options import option
from gallery_lib.measure.replay.repeated_memory import PIECE_BYTES
from gallery_lib.measure.replay.timeline import Timeline
from gallery_lib.system import hardware

HERE = Path(__file__).resolve().parent
WHAT_IT_IS = (
    "Time-dilated replay on an emulated link. Communication between hosts is real, over links "
    "shaped to `rate` divided by `stretch`; computation is waiting, multiplied by `stretch`; times "
    "are divided by `stretch`. What this machine's own cores and memory do (sockets, copies, sums, "
    "all that stays within a host) is not stretched, "
    "so it counts for `stretch` times less than it takes here."
)
_PROCESS_BYTES, _TORCHRUN_BYTES, _SYSTEM_BYTES = 470e6, 300e6, 1e9
"""Memory of a process with torch and its sockets, of a host's torchrun, and of all else."""
_SHARED_PIECES_BYTES = 40 * 2**20
"""Largest pieces that one strategy has in flight at a time: two of 12 MiB, or one of 38."""


@dataclass(frozen=True)
class DdpLabConfig:
    """Processes of a run on a lab."""

    ranks: int = option(
        1,
        "Processes on each host. Several make hierarchical averaging possible. They share this "
        "machine's cores and memory.",
        unit="processes",
        minimum=1,
    )
    hosts_of_sweep: str = option(
        "1,2,4,8",
        "With sweep: numbers of hosts, separated by commas. Every timeline is measured on each.",
    )


def on_a_lab(lab_config: LabConfig, ranks: int, script: str, words: Sequence[str]) -> str:
    """Run a script of this folder on every host of a new lab, to its end.

    Return how the hosts got their CPU share.
    """
    with Lab(lab_config.hosts, lab_config.rate, lab_config.cpus) as lab:
        run_on_hosts(lab, [str(HERE / script), *words], LabRunConfig(nproc_per_node=ranks))
        return lab.cpu_share


def stretched(config: LabConfig, stretch: float) -> LabConfig:
    """Return the lab for stretched time, whose links are slower.

    Each host gets all cores, since its computation is waiting.
    """
    rate = f"{link_rate.bits_per_second(config.rate) / stretch / 1000:f}kbit"
    return dataclasses.replace(config, rate=rate, cpus=config.cpus or hardware.cores())


def replayed(
    files: Sequence[Path],
    action: str,
    config: ReplayConfig,
    lab: LabConfig,
    processes: DdpLabConfig,
    out: Path,
) -> None:
    """Write OUT/NAME.json for each timeline NAME.json, as soon as it is measured."""
    words = [action, *map(str, files), "--out", str(out), *words_of(config)]
    on_a_lab(stretched(lab, config.stretch), processes.ranks, "ddp_replay.py", words)


def memory_bytes(timeline: Timeline, wires: str, hosts: int, ranks: int) -> float:
    """Return about how many bytes a replay takes on this machine.

    Each rank holds its buckets and a piece of what is being made. With other wire formats than
    exact it also holds what error feedback keeps, and the largest bucket as it is sent. Each host
    holds torchrun and the shared memory of hierarchical averaging: a piece of a bucket for each
    rank, and one more.
    """
    largest = max(max(gradient.bytes for gradient in timeline.gradients), 25 * 2**20)
    kept = 2 if {"int8", "powersgd"} & set(wires.split(",")) else 1
    sent = 0 if wires == "exact" else largest
    of_rank = _PROCESS_BYTES + kept * timeline.gradient_bytes + min(largest, PIECE_BYTES) + sent
    return _SYSTEM_BYTES + hosts * (
        ranks * of_rank + _TORCHRUN_BYTES + (ranks + 1 if ranks > 1 else 0) * _SHARED_PIECES_BYTES
    )


def too_large(timeline: Timeline, wires: str, hosts: int, ranks: int) -> str:
    """Return why this machine cannot replay the timeline, or ""."""
    needed, there = memory_bytes(timeline, wires, hosts, ranks), hardware.memory_bytes()
    sizes = (
        f"about {needed / 2**30:.1f} GiB of memory on {hosts} hosts × {ranks} processes, "
        f"and this machine has {there / 2**30:.1f} GiB"
    )
    return f"{timeline.task} needs {sizes}. Use fewer hosts or processes." if needed > there else ""
