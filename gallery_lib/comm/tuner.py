"""Which way of averaging gradients is fastest here? Candidates take turns over the first steps of the real training.

Every step of a turn is a step of the training, and all lossless candidates compute the same, so nothing is lost. The score is
the median step time of the slowest rank. All ranks follow one choice: the best whose gain over DDP's own way is certain, else DDP's
own way. It is printed as a table and kept, for this model, these hosts and processes, this kind of device and these versions; with
others it is measured anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib import hardware, paths, stats
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerated import accelerate_ddp
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.results import write_json
from gallery_lib.table import seconds, text_table

PLAIN = "ddp"
"""The candidate that is DDP's own way."""
_SETTLING_STEPS = 2
"""Not counted at the beginning of a turn: DDP orders its buckets anew."""


def candidates(options: Comm, hosts: topology.Topology) -> dict[str, Comm]:
    """By name, DDP's own way first. They are lossless, unless `options.wire` asks for another wire format."""
    options = dataclasses.replace(options, tune=False)
    found = {PLAIN: Comm(), "views": dataclasses.replace(options, bucket_views=True)}
    if options.wire != "powersgd":
        found["views, 2 streams"] = dataclasses.replace(options, bucket_views=True, streams=2)
        found["small buckets, 2 streams"] = dataclasses.replace(options, bucket_views=True, streams=2, bucket_mb=8)
        if hosts.uniform and len(hosts.hosts[0]) > 1:
            both = dataclasses.replace(options, bucket_views=True, hierarchical=True)
            found |= {"hierarchical": both, "hierarchical, 2 streams": dataclasses.replace(both, streams=2, bucket_mb=8)}
    return found


class Tuner:
    """Takes over the `forward` of a DistributedDataParallel until the choice is made. Making one is a collective call."""

    def __init__(
        self,
        model: nn.parallel.DistributedDataParallel,
        ways: Mapping[str, Comm],
        *,
        rounds: int = 4,
        block_steps: int = 5,
        confidence: float = 0.99,
        keep: bool = True,
    ) -> None:
        if next(iter(ways)) != PLAIN:
            raise InputError(f"the first candidate must be `{PLAIN}`, which the others are compared with.")
        self.model, self.ways, self.rounds, self.block_steps, self.confidence = model, dict(ways), rounds, block_steps, confidence
        self.hosts = topology.find()
        self.path = paths.cache_dir() / "comm" / f"{self._key()}.json" if keep else None
        self.chosen: str | None = None
        self.measured: dict[str, list[list[float]]] = {}
        """Seconds of the counted steps by turn, each of the slowest rank; empty until the choice, and where it was kept."""
        self._seconds: dict[str, list[list[float]]] = {name: [] for name in self.ways}
        self._began: float | None = None
        self._current = ("", False)
        self._turns = self._steps()
        kept = process_group.from_rank_0(self._read() if self.path and self.path.is_file() else None)
        if kept is not None:
            self._settle(kept, f"kept from an earlier run in {self.path}, which may be edited or deleted")
        else:
            object.__setattr__(model, "forward", self._forward)

    def _key(self) -> str:
        facts = [
            [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in self.model.module.named_parameters()],
            self.hosts.hosts,
            {name: dataclasses.asdict(way) for name, way in self.ways.items()},
            torch.cuda.get_device_name() if self.model.device.type == "cuda" else hardware.processor(),
            torch.__version__,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]

    def _read(self) -> str:
        assert self.path is not None
        try:
            chosen = str(json.loads(self.path.read_text())["chosen"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f"{self.path} is damaged ({type(error).__name__}: {error}). Delete it, and it is measured anew.") from None
        if chosen not in self.ways:
            close = did_you_mean(chosen, self.ways)
            raise InputError(f"{self.path} chooses {chosen!r}, which is no candidate.{close} Known: {', '.join(self.ways)}.")
        return chosen

    def _steps(self) -> Iterator[tuple[str, bool]]:
        """The candidate of each step, and whether the step counts."""
        for number in range(self.rounds):
            for name in self.ways if number % 2 == 0 else reversed(self.ways):
                self._seconds[name].append([])
                for step in range(_SETTLING_STEPS + self.block_steps):
                    if step == 0:
                        accelerate_ddp(self.model, self.ways[name])
                    yield name, step >= _SETTLING_STEPS

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        if model.training and torch.is_grad_enabled() and model.require_backward_grad_sync and not model._join_config.enable:
            self._step_begins()
        return type(model).forward(model, *args, **kwargs)

    def _step_begins(self) -> None:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._began is not None:
            name, counts = self._current
            if counts:
                self._seconds[name][-1].append(now - self._began)
        try:
            self._current = next(self._turns)
        except StopIteration:
            self._decide()
        self._began = time.perf_counter()

    def _decide(self) -> None:
        slowest = {name: stats.slowest_rank(process_group.all_ranks(blocks)) for name, blocks in self._seconds.items()}
        self.measured = slowest
        rows, best = [["gradients averaged by", "step time p50", f"{PLAIN} over it (interval)", "verdict"]], (1.0, PLAIN)
        for name, blocks in slowest.items():
            p50 = seconds(stats.percentiles([step for block in blocks for step in block])["p50"])
            if name == PLAIN:
                rows.append([name, p50, "", "baseline"])
                continue
            ratio = stats.ratio_of_medians(slowest[PLAIN], blocks, confidence=self.confidence)
            rows.append([name, p50, str(ratio), ratio.verdict])
            if ratio.verdict == "faster" and ratio.ratio > best[0]:
                best = (ratio.ratio, name)
        chosen = process_group.from_rank_0(best[1])
        if process_group.rank() == 0:
            print(text_table(rows), file=sys.stderr)
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, {"chosen": chosen, "hosts": str(self.hosts), "table": rows})
        self._settle(chosen, "measured now")

    def _settle(self, chosen: str, origin: str) -> None:
        self.chosen = chosen
        self.model.__dict__.pop("forward", None)
        accelerate_ddp(self.model, self.ways[chosen])
        if dist.get_rank() == 0:
            print(f"{type(self.model.module).__name__}: gradients are averaged by `{chosen}` ({origin}).", file=sys.stderr, flush=True)


def apply(model: nn.parallel.DistributedDataParallel, options: Comm) -> Tuner | None:
    """Have `model` average gradients as `options` say; with `options.tune`, as chosen over the next steps. A collective call."""
    if not options.tune:
        accelerate_ddp(model, options)
        return None
    return Tuner(model, candidates(options, topology.find()))
