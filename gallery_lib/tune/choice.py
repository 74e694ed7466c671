"""Tuning decision: the fastest candidate whose gain is certain and whose gradients are right.

A candidate is a memory layout with a compiler or without one. Each runs on a copy of the model and
the real batch, and the candidates take turns. Right are gradients that match the baseline's. A
candidate that raises, or whose gradients differ, is dropped with the reason. The decision is kept
in `tuning/` of the cache: one file per model, kind of input, machine and set of versions.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gallery_lib import stats
from gallery_lib.comm import process_group
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.calls import Call, compiled_call, set_compiled
from gallery_lib.config import Compiler, Config
from gallery_lib.console.text import seconds, text_table
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.errors import InputError
from gallery_lib.memory import convert_images, memory_format
from gallery_lib.system import hardware, paths
from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.hardware import version
from gallery_lib.system.processes import tell

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
# Turns of each candidate, and passes in a turn, of which the first does not count.
ROUNDS, BLOCK_STEPS = 6, 3
# Largest relative deviation of a gradient norm, by precision. Rounding on one batch stays below it
# (benchmarks/notes/parity.md).
SCALE_TOLERANCE = {"fp32": 4e-3, "half": 8e-2}
# Deviation of a gradient that is no finite number, in a file that holds finite ones.
_WITHOUT_END = 1e9
# A gradient counts as zero below this fraction of the whole model's root mean square.
_NEGLIGIBLE = 1e-5


def without_dropout(model: nn.Module) -> None:
    """Set every dropout rate in `model` to zero.

    Backends draw different random numbers, so what two of them compute would differ. The rates are
    those of modules and the plain numbers that models hand to functions (`self.dropout = 0.1`).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@dataclass(frozen=True)
class Candidate:
    """A memory layout and a compiler backend for a model; the defaults are the baseline."""

    layout: str = "contiguous"
    backend: str | None = None

    @property
    def name(self) -> str:
        """Return the display name, such as `eager` or `inductor, channels_last`."""
        layout = f", {self.layout}" if self.layout != "contiguous" else ""
        return f"{self.backend or 'eager'}{layout}"

    def apply(self, model: nn.Module, options: Compiler, device: torch.device) -> None:
        """Lay out and compile `model` in place; compilation itself runs at its next call."""
        channels_last = self.layout == "channels_last"
        if self.backend:
            options = dataclasses.replace(options, backend=self.backend)
            compile_model(model, options, device, channels_last=channels_last)
        elif channels_last:
            convert_images(model)


BASELINE = Candidate()


def candidates(model: nn.Module, config: Config, device: torch.device) -> list[Candidate]:
    """Return the baseline, then what `config` allows: its layout alone, and with its compiler.

    A layout is a candidate of its own where it is asked for by name. Candidates that coincide
    appear once.
    """
    channels_last = memory_format(model, config.memory, device.type) is torch.channels_last
    layout = "channels_last" if channels_last else "contiguous"
    variants = [BASELINE]
    if config.memory.layout != "auto":
        variants.append(Candidate(layout))
    if config.compiler.enabled:
        variants.append(Candidate(layout, config.compiler.backend))
    return list(dict.fromkeys(variants))


class Trial:
    """A copy of `model` that runs as a candidate says. Raises whatever the candidate raises.

    Forward and backward passes run on the real inputs. The copy has no dropout, so that all
    candidates compute the same. The model's outputs are multiplied with fixed random numbers to
    have something to differentiate: the user's loss is not known here, and costs little beside a
    model. The optimizer is not part of the trial.
    """

    def __init__(
        self, model: nn.Module, one: Candidate, options: Compiler, inputs: Inputs, device: Any
    ) -> None:
        self.device = device
        self._directions: list[Tensor] = []
        self.model = copy.deepcopy(model)
        without_dropout(self.model)
        one.apply(self.model, options, device)
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
        # Drawn at the first step, which no turn counts.
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

    Norms and numbers of elements are by parameter name. Parameters whose gradient is zero except
    for rounding do not count.
    """
    mean_squares = {name: norm**2 / sizes[name] for name, norm in baseline.items()}
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    worst, where = 0.0, "no parameter"
    for name, square in mean_squares.items():
        if square <= _NEGLIGIBLE**2 * overall:
            continue
        deviation = abs(candidate.get(name, math.nan) / baseline[name] - 1.0)
        if not deviation <= worst:  # also true for NaN
            finite = deviation == deviation
            worst, where = (min(deviation, _WITHOUT_END) if finite else _WITHOUT_END), name
    return worst, where


# --------------------------------------------------------------------------------------------------
# Turns


@dataclass(frozen=True)
class Row:
    """Measurement of one candidate.

    Seconds are of forward and backward; the ratio is baseline over candidate.
    """

    candidate: str
    verdict: str
    step_seconds: float | None = None
    gradient_deviation: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Choice:
    """The candidate in use, with all measurements; `kept` says that an earlier run chose it."""

    chosen: str
    rows: tuple[Row, ...]
    kept: bool = False

    def table(self) -> str:
        """Return a text table: candidate, step time, ratio with interval, gradients, verdict."""
        header = ["candidate", "forward + backward", "over eager (interval)"]
        lines = [[*header, "gradient norms differ by", "verdict"]]
        for row in self.rows:
            time = "" if row.step_seconds is None else seconds(row.step_seconds)
            ratio = ""
            if row.ratio is not None:
                ratio = f"{row.ratio:.2f}× ({row.low:.2f} to {row.high:.2f})"
            deviation = "" if row.gradient_deviation is None else f"{row.gradient_deviation:.1e}"
            lines.append([row.candidate, time, ratio, deviation, row.verdict])
        return text_table(lines)


def _failure(step: Callable[[], Any]) -> str:
    """Run `step` and return why it failed on some rank, or '' if it succeeded on all."""
    reason = ""
    try:
        step()
    # A compiler or a model may raise anything: the candidate is dropped, the run goes on.
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[0]}"[:160]
    return next((message for message in process_group.all_ranks(reason) if message), "")


def take_turns(
    model: nn.Module, inputs: Inputs, config: Config, device: torch.device, found: list[Candidate]
) -> tuple[list[Row], str]:
    """Return a row for each candidate, baseline first, and the name of the candidate to use."""
    tolerance = SCALE_TOLERANCE["half" if torch.is_autocast_enabled(device.type) else "fp32"]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    trials: dict[str, Trial] = {}
    norms: dict[str, dict[str, float]] = {}
    rows: dict[str, Row] = {}
    for candidate in found:
        name = candidate.name

        def set_up(candidate: Candidate = candidate) -> None:
            trial = Trial(model, candidate, config.compiler, inputs, device)
            trial.step()
            trials[candidate.name], norms[candidate.name] = trial, trial.gradient_norms()

        if reason := _failure(set_up):
            rows[name] = Row(name, f"dropped: {reason}")
            trials.pop(name, None)
            if candidate == BASELINE:
                return [rows[name]], name
        elif candidate != BASELINE:
            own = worst_deviation(norms[BASELINE.name], norms[name], sizes)
            deviation, where = max(process_group.all_ranks(own))
            if deviation > tolerance:
                verdict = f"dropped: other gradients, first of all in {where}"
                rows[name] = Row(name, verdict, gradient_deviation=deviation)
                del trials[name]
    rounds: dict[str, list[list[float]]] = {name: [] for name in trials}
    for number in range(ROUNDS):
        for name in stats.turn_order(trials, number):
            rounds[name].append([trials[name].step() for _ in range(BLOCK_STEPS)][1:])
    slowest = {
        name: stats.slowest_rank(process_group.all_ranks(blocks)) for name, blocks in rounds.items()
    }
    best = (1.0, BASELINE.name)
    for name, blocks in slowest.items():
        p50 = stats.percentiles([step for block in blocks for step in block])["p50"]
        if name == BASELINE.name:
            rows[name] = Row(name, "baseline", p50)
            continue
        ratio = stats.ratio_of_medians(slowest[BASELINE.name], blocks)
        deviation, _ = worst_deviation(norms[BASELINE.name], norms[name], sizes)
        rows[name] = Row(name, ratio.verdict, p50, deviation, ratio.ratio, ratio.low, ratio.high)
        if ratio.verdict == "faster" and ratio.ratio > best[0]:
            best = (ratio.ratio, name)
    return [rows[candidate.name] for candidate in found], best[1]


# --------------------------------------------------------------------------------------------------
# Keeping the choice


def key(
    model: nn.Module, inputs: Inputs, config: Config, device: torch.device, found: list[Candidate]
) -> str:
    """Return the file name of a kept choice: a digest of everything that the choice depends on."""
    facts = [
        [(name, type(module).__qualname__) for name, module in model.named_modules()],
        [
            (name, tuple(p.shape), str(p.dtype), p.requires_grad)
            for name, p in model.named_parameters()
        ],
        [(tuple(t.shape), str(t.dtype)) for t in tensors_in(inputs)],
        [candidate.name for candidate in found],
        dataclasses.asdict(config.compiler),
        torch.is_autocast_enabled(device.type) and str(torch.get_autocast_dtype(device.type)),
        torch.cuda.get_device_name(device) if device.type == "cuda" else hardware.processor(),
        torch.get_num_threads(),
        process_group.world_size(),
        os.environ.get("GLIBC_TUNABLES", ""),
        torch.__version__,
        version(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _read(path: Path, variants: list[Candidate]) -> Choice | None:
    """Return the kept choice; None where there is none that can be used."""
    with contextlib.suppress(FileNotFoundError, InputError):
        kept = read_json(path, Choice, again="")
        if kept.chosen in [candidate.name for candidate in variants]:
            return dataclasses.replace(kept, kept=True)
    return None


def choose(model: nn.Module, inputs: Inputs, config: Config, device: torch.device) -> Choice:
    """Return the choice for `model` on `inputs`, the same on every rank: a kept one, or a new one.

    A new choice is measured now and kept, unless nothing ran, for want of memory say. The model,
    its gradients and torch's random state stay as before.
    """
    variants = candidates(model, config, device)
    path = paths.cache_dir() / "tuning" / f"{key(model, inputs, config, device, variants)}.json"
    kept = process_group.from_rank_0(_read(path, variants))
    if kept is not None:
        return kept
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rows, name = take_turns(model, inputs, config, device, variants)
    choice = Choice(process_group.from_rank_0(name), tuple(rows))
    measured = any(row.step_seconds is not None for row in rows)
    if measured and process_group.rank() == 0:
        # If the cache cannot be written, the next run measures again.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, dataclasses.asdict(choice))
    return choice


# --------------------------------------------------------------------------------------------------
# Tuning of a model at its first training step, on a real batch; the model then runs as chosen.
#
# Earlier calls (evaluation, no gradients) run eagerly and do not tune.


_explanations: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def explanation(model: nn.Module) -> str:
    """Return why the model runs as it does: the table of its candidates; '' if it was not tuned."""
    return _explanations.get(model, "")


def _explain(model: nn.Module, choice: Choice) -> None:
    origin = "kept from an earlier run" if choice.kept else "measured now on the first batch"
    last = f"{type(model).__name__} runs as `{choice.chosen}` ({origin})."
    _explanations[model] = f"{choice.table()}\n{last}"
    if process_group.rank() == 0:
        tell(_explanations[model])


def tune_at_first_step(
    model: nn.Module, config: Config, device: torch.device, done: MutableMapping[str, str]
) -> None:
    """Have `model` choose how it runs when it is first called to train.

    The choice, its layout and its compiler are then noted in `done`.
    """
    eager: Call = model._call_impl

    def first_call(*args: Any, **kwargs: Any) -> Any:
        if not (model.training and torch.is_grad_enabled()):
            return eager(*args, **kwargs)
        set_compiled(model, None)
        choice = choose(model, (args, kwargs), config, device)
        candidate = next(c for c in candidates(model, config, device) if c.name == choice.chosen)
        candidate.apply(model, config.compiler, device)
        kept = " (kept choice)" if choice.kept else ""
        done["tuning"] = f"{choice.chosen}, of {len(choice.rows)} candidates{kept}"
        _explain(model, choice)
        done.update(layout=candidate.layout, compiler=candidate.backend or "none: eager")
        return (compiled_call(model) or eager)(*args, **kwargs)

    set_compiled(model, first_call)
