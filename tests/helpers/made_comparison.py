"""Made-up comparisons, for tests of what tables, verdicts and pictures say of one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from gallery_lib.measure.comparison.result import Check, Comparison, Parity, write_comparison
from gallery_lib.stats import Ratio
from gallery_lib.train.results import Results

ENVIRONMENT: dict[str, Any] = {
    "device": "cpu",
    "cpu": "A CPU",
    "cores": 2,
    "isa": ["avx2"],
    "memory_bytes": 2**34,
    "python": "3",
    "torch": "2",
}
FIGURES: dict[str, dict[str, float]] = {
    "step_seconds": {"p50": 0.1},
    "samples_per_second": {"global": 10.0, "whole_run": 5.0},
    "startup_seconds": {"total": 9.0},
}
"""What a row of a bench has that was measured."""
FASTER = Ratio(2.0, 1.9, 2.1)
NO_DIFFERENCE = Ratio(1.18, 0.9, 1.8)
SLOWER = Ratio(0.8, 0.7, 0.9)


def results(p50: float) -> Results:
    return Results(
        task="resnet50",
        config={
            "amp_level": "O0",
            "batch_size": 16,
            "image_size": 48,
            "threads": 2,
            "workers": 1,
            "compiler_opt": False,
        },
        environment=ENVIRONMENT,
        world_size=1,
        nodes=1,
        steps=20,
        warmup_steps=2,
        loss={"first": 7.0, "last": None, "curve": [[1, 7.0], [2, None]]},
        metrics={"top1": 0.5},
        step_seconds={"p50": p50, "p75": p50, "p90": p50, "p95": p50, "mean": p50},
        samples_per_second={"per_device": 16 / p50, "global": 16 / p50, "whole_run": 3.0},
        startup_seconds={"total": 10.0, "compile": 0.0},
        page_faults=0.0,
        phase_seconds={"input": 0.01, "forward": 0.3, "backward": 0.5, "optimizer": 0.1},
        peak_memory_bytes={"host": 2**30, "device": None},
        skipped_steps=0,
        techniques={},
    )


def comparison(speedup: Ratio | None, steps: int | None) -> Comparison:
    check = Check("losses", speedup is not None, 0.5, 0.1, "step 2")
    return Comparison(
        task="resnet50",
        folder="runs/x",
        variants={"baseline": results(0.5), "compiler-opt": results(0.25)},
        speedup=speedup,
        parity=Parity(speedup is not None, [check]),
        break_even_steps=steps,
        verdict=speedup.verdict if speedup else "not comparable",
        chance={"top1": 0.1},
        confidence=0.99,
    )


def changed(found: Comparison, **values: Any) -> Comparison:
    """Return the comparison with other values in the results of both variants.

    `config` and `environment` are merged into what is there.
    """

    def of(run: Results) -> Results:
        merged = {
            name: {**(getattr(run, name) or {}), **value} if isinstance(value, dict) else value
            for name, value in values.items()
        }
        return dataclasses.replace(run, **merged)

    return dataclasses.replace(
        found, variants={name: of(run) for name, run in found.variants.items()}
    )


def write(found: Comparison, folder: Path) -> Path:
    """Write `comparison.json` into `folder`, which is made, and return its path."""
    folder.mkdir(parents=True)
    write_comparison(dataclasses.replace(found, folder=str(folder)))
    return folder / "comparison.json"
