"""Find the fastest strategy for averaging gradients by measuring candidates in the real training.

Candidates take turns over the first steps. Every step of a turn is a step of the training, and all
lossless candidates compute the same, so nothing is lost. The score is the median step time of the
slowest rank. All ranks follow one choice: the best candidate whose gain over plain DDP is certain,
else plain DDP. The choice is printed as a table and kept for this model, these hosts and processes,
this kind of device and these versions. With others it is measured anew.

A step lies between two backward passes whose gradients are averaged. Their number is the same on
every rank; that of forward passes need not be. Before a turn changes, ranks make sure that all have
come to it. If one does not come, plain DDP is used from then on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gallery_lib import stats
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import (
    SETTLING_STEPS,
    accelerate_ddp,
    check_same_on_all_ranks,
    say,
    use_strategy,
    watched,
)
from gallery_lib.comm.channel import SHARED_MEMORY
from gallery_lib.comm.topology import Topology
from gallery_lib.comm.torch_ddp import (
    DDP,
    BackwardPass,
    default_store,
    expect_backward_pass,
    is_joined,
)
from gallery_lib.config import Comm
from gallery_lib.console.table import seconds, text_table
from gallery_lib.errors import InputError
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import read_json, write_json

PLAIN = "ddp"
"""Name of the candidate that is plain DDP."""
_OVERWRITTEN = (
    "; they may lie in DDP's buckets, "
    "so that a gradient which is kept over a step is overwritten by the next"
)
_MEETING_SECONDS = 30.0
"""Limit for all ranks to come to a change of turns.

A rank that does not come may be waited for elsewhere.
"""
_numbers = itertools.count()
"""Serial numbers of tuners, which are made in the same order on all ranks."""


class Tuner:
    """Measurement that switches a DDP's strategy before some forward passes, until the choice.

    The constructor is a collective call.

    Args:
        model: the DistributedDataParallel to tune.
        strategies: candidate options by name; `ddp`, with which others are compared, is the first.
        rounds: turns of each candidate.
        block_steps: counted steps of a turn.
        keep: whether to keep the choice in the cache folder and use a kept one.
    """

    def __init__(
        self,
        model: DDP,
        strategies: Mapping[str, Comm],
        *,
        rounds: int = 4,
        block_steps: int = 5,
        keep: bool = True,
    ) -> None:
        assert next(iter(strategies)) == PLAIN
        self.strategies = dict(strategies)
        self.rounds, self.block_steps = rounds, block_steps
        self.hosts = topology.find()
        self.choice: str | None = None
        self.measured: dict[str, list[list[float]]] = {}
        """Seconds of the counted steps by turn, each of the slowest rank.

        Empty until the choice, and where the choice was kept from an earlier run.
        """
        self._model = weakref.ref(model)
        self._name = type(model.module).__name__
        self._key = f"gallery_lib/tuner/{next(_numbers)}"
        self._seconds: dict[str, list[list[float]]] = {name: [] for name in self.strategies}
        self._order = self._turns()
        self._turn, self._current, self._step = 0, "", 0
        self._began: float | None = None
        self._backward_pass: weakref.ref[BackwardPass] | None = None
        self.path = _choice_path(model, self.hosts, self.strategies) if keep else None
        if self.path is not None:
            self.choice = process_group.from_rank_0(_kept_choice(self.path, self.strategies))
        watched(model).before_forward = self._before_forward

    def _turns(self) -> Iterator[str]:
        for number in range(self.rounds):
            yield from stats.turn_order(self.strategies, number)

    @property
    def _turn_steps(self) -> int:
        return SETTLING_STEPS + self.block_steps

    @torch._disable_dynamo
    def _before_forward(self) -> None:
        model = self._model()
        if model is None or not model.training or is_joined(self._model):
            return
        if self._backward_pass is not None and self._backward_pass() is not None:
            return  # no gradients were averaged since: another forward pass of one step
        self._step_begins(model)
        self._backward_pass = expect_backward_pass(model)

    def _step_begins(self, model: DDP) -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._began is not None and self._step > SETTLING_STEPS:
            self._seconds[self._current][-1].append(now - self._began)
        if self._step % self._turn_steps == 0:
            self._change(model)
        self._step += 1
        self._began = time.perf_counter()

    def _change(self, model: DDP) -> None:
        if not _all_ranks_arrive(f"{self._key}/{self._turn}", _MEETING_SECONDS):
            self._settle(
                model,
                PLAIN,
                f"a rank did not come to the same step within {_MEETING_SECONDS:.0f} s, "
                "so ways were not compared",
            )
            return
        if self.choice is not None:
            self._settle(model, self.choice, f"kept from an earlier run in {self.path}")
            return
        if self._turn == 0:
            steps = len(self.strategies) * self.rounds * self._turn_steps
            views = any(self._has_views(model, name) for name in self.strategies)
            say(
                f"{self._name}: {len(self.strategies)} ways of averaging gradients take turns over "
                f"the first {steps} steps{_OVERWRITTEN * views}."
            )
        name = next(self._order, None)
        if name is None:
            self._decide(model)
            return
        self._turn, self._step, self._current = self._turn + 1, 0, name
        self._seconds[name].append([])
        use_strategy(model, self.strategies[name])

    def _has_views(self, model: DDP, name: str) -> bool:
        return self.strategies[name].bucket_views and not model.gradient_as_bucket_view

    def _decide(self, model: DDP) -> None:
        self.measured = {
            name: stats.slowest_rank(process_group.all_ranks(blocks))
            for name, blocks in self._seconds.items()
        }
        table, fastest = self._comparison()
        choice = process_group.from_rank_0(fastest)
        say(text_table(table))
        if self.path and dist.get_rank() == 0:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, {"chosen": choice, "hosts": str(self.hosts), "table": table})
            except OSError as error:  # the training goes on without
                say(f"{self._name}: the choice cannot be kept for the next run: {error}.")
        self._settle(model, choice, "measured now")

    def _comparison(self) -> tuple[list[list[str]], str]:
        """Return the table of step times, and the candidate with the largest certain gain."""
        rows = [
            ["gradients averaged by", "step time p50", f"{PLAIN} over it (interval)", "verdict"]
        ]
        best_ratio, fastest = 1.0, PLAIN
        for name, blocks in self.measured.items():
            p50 = seconds(stats.percentiles([step for block in blocks for step in block])["p50"])
            if name == PLAIN:
                rows.append([name, p50, "", "baseline"])
                continue
            ratio = stats.ratio_of_medians(self.measured[PLAIN], blocks, confidence=0.99)
            rows.append([name, p50, str(ratio), ratio.verdict])
            if ratio.verdict == "faster" and ratio.ratio > best_ratio:
                best_ratio, fastest = ratio.ratio, name
        return rows, fastest

    def _settle(self, model: DDP, choice: str, origin: str) -> None:
        self.choice = choice
        watched(model).before_forward = None
        if self._turn > 0 or choice != PLAIN:
            use_strategy(model, self.strategies[choice])
        overwritten = _OVERWRITTEN * self._has_views(model, choice)
        say(f"{self._name}: gradients are averaged by `{choice}` ({origin}){overwritten}.")


def apply(model: DDP, options: Comm) -> Tuner | None:
    """Have `model` average gradients as `options` say. A collective call.

    With `options.tune`, return a Tuner that chooses over the next steps; else return None.
    """
    if not options.tune or dist.get_world_size() == 1:
        accelerate_ddp(model, options)
        return None
    check_same_on_all_ranks(model, options, "comm.tune")
    hosts = topology.find()
    strategies = candidates(options, hosts)
    if not all(process_group.all_ranks(_has_room(model, options, hosts))):
        strategies = {name: way for name, way in strategies.items() if not way.hierarchical}
    return Tuner(model, strategies)


def candidates(options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the tuner's candidates on these hosts by name, plain DDP first.

    They are lossless, unless `options.wire` asks for another wire format.
    """
    options = dataclasses.replace(options, tune=False)
    # These options decide what training does, not how fast it is.
    fixed = ("static_graph", "find_unused_parameters", "non_finite")
    strategies = {
        PLAIN: Comm(**{name: getattr(options, name) for name in fixed}),
        "views": dataclasses.replace(options, bucket_views=True),
    }
    if options.wire != "powersgd":
        strategies["views, 2 streams"] = dataclasses.replace(options, bucket_views=True, streams=2)
        strategies["small buckets, 2 streams"] = dataclasses.replace(
            options, bucket_views=True, streams=2, bucket_mb=8
        )
        if hosts.uniform and len(hosts.hosts[0]) > 1:
            both = dataclasses.replace(options, bucket_views=True, hierarchical=True)
            strategies |= {
                "hierarchical": both,
                "hierarchical, 2 streams": dataclasses.replace(both, streams=2, bucket_mb=8),
            }
    return strategies


def _has_room(model: DDP, options: Comm, hosts: Topology) -> bool:
    """Return whether this host has twice the shared memory that hierarchical strategies may need.

    A stream's buffer is at most 1.5 times as large as a bucket; models on CUDA need none.
    """
    if model.device.type == "cuda":
        return True
    size = sum(parameter.numel() * parameter.itemsize for parameter in model.module.parameters())
    bucket = max(model.bucket_bytes_cap, int((options.bucket_mb or 0) * 2**20))
    rows = (len(hosts.local(dist.get_rank())) + 1) * options.streams
    try:
        folder = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return 2 * rows * min(size, 3 * bucket // 2) < folder.f_bavail * folder.f_frsize


def _choice_path(model: DDP, hosts: Topology, strategies: Mapping[str, Comm]) -> Path:
    """Return the file for the choice between `strategies`; other circumstances have another."""
    facts = [
        [
            (name, tuple(parameter.shape), str(parameter.dtype))
            for name, parameter in model.module.named_parameters()
        ],
        hosts.hosts,
        {name: dataclasses.asdict(strategy) for name, strategy in strategies.items()},
        torch.cuda.get_device_name() if model.device.type == "cuda" else hardware.processor(),
        torch.__version__,
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return paths.cache_dir() / "comm" / f"{digest}.json"


def _kept_choice(path: Path, strategies: Mapping[str, Comm]) -> str | None:
    """Return the choice in a file, or None where it is missing or damaged: then it is made anew."""
    try:
        choice = read_json(path, dict[str, object], again="").get("chosen")
    except (OSError, InputError):
        return None
    return choice if isinstance(choice, str) and choice in strategies else None


def _all_ranks_arrive(key: str, limit_seconds: float) -> bool:
    """Return whether each rank has come to the barrier `key` in time; same on all ranks.

    Ranks that come later get the same verdict.
    """
    store = default_store()
    here, verdict = f"{key}/here", f"{key}/verdict"
    try:
        if store.add(here, 1) == dist.get_world_size():
            store.compare_set(verdict, "", "all")
        else:
            try:
                store.wait([verdict], timedelta(seconds=limit_seconds))
            except RuntimeError:  # timed out
                store.compare_set(verdict, "", "not all")
        return bool(store.get(verdict) == b"all")
    except RuntimeError:  # the store has gone; what communicates next says so
        return False
