"""Tuning decision: the fastest candidate whose gain is certain and whose gradients are right.

Right are gradients that match the baseline's. The candidates take turns. One that raises, or whose
gradients differ, is dropped with the reason. The decision is kept in a file that people may read
and edit. There is one file per model, kind of input, machine and set of versions.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib import stats
from gallery_lib.comm import process_group
from gallery_lib.config import Compiler, Config
from gallery_lib.console.table import seconds, text_table
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.models.dropout import without_dropout
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import read_json, set_aside, write_json
from gallery_lib.system.version import version
from gallery_lib.tune.candidates import BASELINE, Candidate, candidates

ROUNDS, BLOCK_STEPS = 6, 3
"""Turns of each candidate, and passes in a turn, of which the first does not count."""
SCALE_TOLERANCE = {"fp32": 4e-3, "half": 8e-2}
"""Largest relative deviation of a gradient norm, by precision.

Rounding on one batch stays below it (benchmarks/notes/parity.md).
"""


@dataclass(frozen=True)
class Row:
    """Measurement of one candidate.

    Seconds are of forward and backward; the ratio is baseline over candidate.
    """

    candidate: str
    step_seconds: float | None
    ratio: float | None
    low: float | None
    high: float | None
    gradient_deviation: float | None
    verdict: str


@dataclass(frozen=True)
class Choice:
    """The candidate in use, with all measurements; `kept` says that an earlier run chose it."""

    chosen: str
    rows: tuple[Row, ...]
    kept: bool = False
    path: str = ""

    def table(self) -> str:
        """Return a text table: candidate, step time, ratio with interval, gradients, verdict."""
        lines = [
            [
                "candidate",
                "forward + backward",
                "over eager (interval)",
                "gradient norms differ by",
                "verdict",
            ]
        ]
        for row in self.rows:
            ratio = (
                "" if row.ratio is None else f"{row.ratio:.2f}× ({row.low:.2f} to {row.high:.2f})"
            )
            deviation = "" if row.gradient_deviation is None else f"{row.gradient_deviation:.1e}"
            lines.append(
                [
                    row.candidate,
                    "" if row.step_seconds is None else seconds(row.step_seconds),
                    ratio,
                    deviation,
                    row.verdict,
                ]
            )
        return text_table(lines)


def _failure(step: Callable[[], Any]) -> str:
    """Run `step` and return why it failed on some rank, or '' if it succeeded on all."""
    try:
        step()
        reason = ""
    # A compiler or a model may raise anything: the candidate is dropped, the run goes on.
    except Exception as error:
        reason = (
            f"{type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        )[:160]
    return next((message for message in process_group.all_ranks(reason) if message), "")


def take_turns(
    model: nn.Module, inputs: Inputs, config: Config, device: torch.device, found: list[Candidate]
) -> tuple[list[Row], str]:
    """Return a row for each candidate, baseline first, and the name of the candidate to use."""
    half = torch.is_autocast_enabled(device.type)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    trials: dict[str, Trial] = {}
    norms: dict[str, dict[str, float]] = {}
    dropped: dict[str, tuple[str, float | None]] = {}
    for candidate in found:

        def set_up(candidate: Candidate = candidate) -> None:
            trial = Trial(model, candidate, config.compiler, inputs, device)
            trial.step()
            trials[candidate.name], norms[candidate.name] = trial, trial.gradient_norms()

        if reason := _failure(set_up):
            dropped[candidate.name] = (f"dropped: {reason}", None)
        elif candidate != BASELINE:
            deviation, where = worst_deviation(norms[BASELINE.name], norms[candidate.name], sizes)
            deviation, where = max(process_group.all_ranks((deviation, where)))
            if deviation > SCALE_TOLERANCE["half" if half else "fp32"]:
                dropped[candidate.name] = (
                    f"dropped: other gradients, first of all in {where}",
                    deviation,
                )
        if candidate.name in dropped:
            trials.pop(candidate.name, None)
            if candidate == BASELINE:
                return [
                    Row(BASELINE.name, None, None, None, None, None, dropped[BASELINE.name][0])
                ], BASELINE.name
    rounds: dict[str, list[list[float]]] = {name: [] for name in trials}
    for number in range(ROUNDS):
        for name in stats.turn_order(trials, number):
            rounds[name].append([trials[name].step() for _ in range(BLOCK_STEPS)][1:])
    slowest = {
        name: stats.slowest_rank(process_group.all_ranks(blocks)) for name, blocks in rounds.items()
    }
    rows, best = [], (1.0, BASELINE.name)
    for candidate in found:
        name = candidate.name
        if name in dropped:
            rows.append(Row(name, None, None, None, None, dropped[name][1], dropped[name][0]))
            continue
        p50 = stats.percentiles([step for block in slowest[name] for step in block])["p50"]
        if candidate == BASELINE:
            rows.append(Row(name, p50, None, None, None, None, "baseline"))
            continue
        ratio = stats.ratio_of_medians(slowest[BASELINE.name], slowest[name])
        deviation, _ = worst_deviation(norms[BASELINE.name], norms[name], sizes)
        rows.append(Row(name, p50, ratio.ratio, ratio.low, ratio.high, deviation, ratio.verdict))
        if ratio.verdict == "faster" and ratio.ratio > best[0]:
            best = (ratio.ratio, name)
    return rows, best[1]


# --------------------------------------------------------------------------------------------------
# Keeping the choice


def key(
    model: nn.Module, inputs: Inputs, config: Config, device: torch.device, found: list[Candidate]
) -> str:
    """Return the file name of a kept choice: a digest of everything that the choice depends on.

    The digest covers the model's structure, its inputs' shapes, the candidates, the machine and the
    versions.
    """
    facts = [
        [(name, type(module).__qualname__) for name, module in model.named_modules()],
        [
            (name, tuple(p.shape), str(p.dtype), p.requires_grad)
            for name, p in model.named_parameters()
        ],
        [(tuple(t.shape), str(t.dtype)) for t in tensors_in(inputs)],
        [candidate.name for candidate in found],
        dataclasses.asdict(config.compiler),
        str(torch.get_autocast_dtype(device.type))
        if torch.is_autocast_enabled(device.type)
        else "fp32",
        torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.processor(),
        torch.get_num_threads(),
        process_group.world_size(),
        os.environ.get("GLIBC_TUNABLES", ""),
        torch.__version__,
        version(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class _Kept:
    """Content of the file that keeps a choice."""

    model: str
    chosen: str
    rows: tuple[Row, ...]


def _read(path: Path, variants: list[Candidate]) -> Choice | None:
    """Return the kept choice, or None where there is none.

    A damaged file is set aside and counts as none.

    Raises:
        InputError: for a file that chooses an unknown candidate.
    """
    try:
        kept = read_json(path, _Kept, again="")
    except FileNotFoundError:
        return None
    except InputError as error:
        if process_group.rank() == 0:
            set_aside(path, error)
        return None
    rows, name = kept.rows, kept.chosen
    names = [candidate.name for candidate in variants]
    if name not in names:
        close = did_you_mean(str(name), names)
        raise InputError(
            f"{path} chooses {name!r}, which is no candidate.{close} Known: {', '.join(names)}; "
            "or delete the file.",
            parameter=str(path),
        )
    return Choice(name, rows, kept=True, path=str(path))


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return `row` with infinity replaced by the largest float, since JSON has no infinity.

    A candidate whose gradients are not numbers deviates as far as possible.
    """
    return {name: sys.float_info.max if value == math.inf else value for name, value in row.items()}


def choose(model: nn.Module, inputs: Inputs, config: Config, device: torch.device) -> Choice:
    """Return the choice for `model` on `inputs`, the same on every rank: a kept one, or a new one.

    A new choice is measured now and kept, unless nothing ran, for want of memory say. The model,
    its gradients and torch's random state stay as before.

    Raises:
        InputError: for a kept file that was edited to an unknown candidate.
    """
    variants = candidates(model, config, device)
    path = paths.cache_dir() / "tuning" / f"{key(model, inputs, config, device, variants)}.json"
    kept = process_group.from_rank_0(_read(path, variants) if config.tune.keep else None)
    if kept is not None:
        return kept
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rows, name = take_turns(model, inputs, config, device, variants)
    choice = Choice(
        process_group.from_rank_0(name), tuple(rows), path=str(path) if config.tune.keep else ""
    )
    measured = any(row.step_seconds is not None for row in rows)
    if config.tune.keep and measured and process_group.rank() == 0:
        values = {
            "model": type(model).__name__,
            "chosen": choice.chosen,
            "rows": [_finite(dataclasses.asdict(row)) for row in choice.rows],
        }
        # If the cache cannot be written, the next run measures again.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, values)
    return choice


# --------------------------------------------------------------------------------------------------
# Trial of one candidate on a copy of the model: timed forward and backward passes with gradients.
#
# The passes run on the real inputs. The copy has no dropout, so that all candidates compute the
# same. The model's outputs are multiplied with fixed random numbers to have something to
# differentiate. The user's loss is not known here, and costs little beside a model. The optimizer
# is not part of the trial.


Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
_NEGLIGIBLE = 1e-5
"""A gradient counts as zero below this fraction of the whole model's root mean square."""


class Trial:
    """A copy of `model` that runs as `candidate` says. Raises whatever the candidate raises."""

    def __init__(
        self,
        model: nn.Module,
        candidate: Candidate,
        options: Compiler,
        inputs: Inputs,
        device: torch.device,
    ) -> None:
        self.candidate, self.device = candidate, device
        self._directions: list[Tensor] = []
        self.model = copy.deepcopy(model)
        without_dropout(self.model)
        candidate.apply(self.model, options, device)
        args, kwargs = inputs
        self.args, self.kwargs = args, dict(kwargs)

    def step(self) -> float:
        """Run a forward and a backward pass and return the seconds; gradients stay in the copy."""
        self.model.zero_grad(set_to_none=True)
        self._synchronize()
        began = time.perf_counter()
        outputs = [t for t in tensors_in(self.model(*self.args, **self.kwargs)) if t.requires_grad]
        torch.autograd.backward(outputs, self._directions_of(outputs))
        self._synchronize()
        return time.perf_counter() - began

    def _directions_of(self, outputs: list[Tensor]) -> list[Tensor]:
        """Return what the outputs are multiplied with.

        It is drawn at the first step, which no turn counts.
        """
        if [t.shape for t in self._directions] != [t.shape for t in outputs]:
            generator = torch.Generator().manual_seed(0)
            self._directions = [
                torch.randn(t.shape, generator=generator).to(t) if t.dim() else torch.ones_like(t)
                for t in outputs
            ]
        return self._directions

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gradient_norms(self) -> dict[str, float]:
        """Return the L2 norm of each parameter's gradient after a step, by parameter name."""
        return {
            name: float(p.grad.detach().double().norm())
            for name, p in self.model.named_parameters()
            if p.grad is not None
        }


def worst_deviation(
    baseline: Mapping[str, float], candidate: Mapping[str, float], sizes: Mapping[str, int]
) -> tuple[float, str]:
    """Return the largest relative deviation of a gradient norm from the baseline, and where it is.

    Parameters whose gradient is zero except for rounding do not count.

    Args:
        baseline: gradient norms of the baseline, by parameter name.
        candidate: gradient norms of the candidate.
        sizes: number of elements of each parameter.
    """
    mean_squares = {name: norm**2 / sizes[name] for name, norm in baseline.items()}
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    worst, where = 0.0, "no parameter"
    for name, square in mean_squares.items():
        if square <= _NEGLIGIBLE**2 * overall:
            continue
        deviation = abs(candidate.get(name, math.nan) / baseline[name] - 1.0)
        if not deviation <= worst:  # also true for NaN
            worst, where = (deviation if deviation == deviation else math.inf), name
    return worst, where
