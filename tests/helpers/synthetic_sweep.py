"""A sweep with made-up figures, for tests of what reads and shows one.

It is never committed as a table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gallery_lib.measure.replay.sweep import SETTINGS, TABLE, Cell, write_sweep

MODELS = ("alexnet", "resnet50", "hf_Bert")
CONDITIONS: dict[str, Any] = {
    "date": "2026-11-22",
    "command": "python benchmarks/network.py sweep",
    "what_it_is": "Made up, for a test.",
    "sweep": {
        "ranks": 2,
        "rate": "10gbit",
        "replay": {"wires": "exact", "rounds": 6, "block_steps": 4},
        "timelines": {},
    },
    "stretches": {"1": 8.0, "2": 8.0, "4": 8.0, "8": 8.0},
    "not_measured": [
        {
            "model": "vgg16",
            "hosts": 8,
            "reason": "vgg16 needs about 30 GiB of memory, and there are 16.",
        }
    ],
}


def cell(model: str, hosts: int, **changed: Any) -> Cell:
    """Return a made-up cell: DDP scales worse with more hosts, and the gain grows."""
    ddp, ratio = 0.02 * (1 + 0.2 * (hosts - 1)), 1 + 0.1 * (hosts - 1)
    values: dict[str, Any] = dict(
        model=model, hosts=hosts, ranks=2, rate="10gbit", stretch=8.0, batch_size=32,
        input_sizes="image_size 224", precision="O1 (bfloat16)", device="1 × a made-up GPU",
        timeline="recorded", gradient_bytes=100_000_000, step_seconds_alone=0.018,
        replayed_on="2 cores of a made-up CPU (avx2), 16.0 GiB, no GPU; Python 3.11, torch 2.15",
        ddp_step_seconds=ddp, ddp_acc=0.02 / ddp, chosen="views, 8 MiB" if hosts > 1 else "ddp",
        chosen_step_seconds=ddp / ratio,
        acc_ratio=ratio, acc_ratio_low=ratio * 0.95, acc_ratio_high=ratio * 1.05,
    )  # fmt: skip
    return Cell(**{**values, **changed})


def cells(models: Sequence[str] = MODELS, hosts: Sequence[int] = (1, 2, 4, 8)) -> list[Cell]:
    """Return a cell for every model on every number of hosts."""
    return [cell(model, number) for model in models for number in hosts]


def write(folder: Path, table: Sequence[Cell] | None = None, **changed: Any) -> Path:
    """Write a sweep's folder as benchmarks/network.py leaves it, and return it.

    The last measurement is missing unless a table is given.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep(folder / TABLE, cells()[:-1] if table is None else table)
    (folder / SETTINGS).write_text(json.dumps({**CONDITIONS, **changed}))
    return folder
