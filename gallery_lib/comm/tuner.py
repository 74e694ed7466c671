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

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from gallery_lib import stats
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import (
    accelerate_ddp,
    check_same_on_all_ranks,
    say,
    stop_watching_steps,
    use_way,
    watched,
)
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.shared_memory import FOLDER
from gallery_lib.config import Comm
from gallery_lib.console.table import seconds, text_table
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import Misfit, converted, read_json, set_aside, write_json

PLAIN = "ddp"
"""Name of the candidate that is plain DDP."""
_SETTLING_STEPS = 2
"""Steps not counted at the beginning of a turn: DDP orders its buckets anew."""
_MEETING_SECONDS = 30.0
"""Limit for all ranks to come to a change of turns.

A rank that does not come may be waited for elsewhere.
"""
_numbers = itertools.count()
"""Serial numbers of tuners, which are made in the same order on all ranks."""


def candidates(options: Comm, hosts: topology.Topology) -> dict[str, Comm]:
    """Return the candidates by name, plain DDP first.

    They are lossless, unless `options.wire` asks for another wire format.
    """
    options = dataclasses.replace(options, tune=False)
    # These options decide what training does, not how fast it is.
    kept = ("static_graph", "find_unused_parameters", "non_finite")
    found = {
        PLAIN: Comm(**{name: getattr(options, name) for name in kept}),
        "views": dataclasses.replace(options, bucket_views=True),
    }
    if options.wire != "powersgd":
        found["views, 2 streams"] = dataclasses.replace(options, bucket_views=True, streams=2)
        found["small buckets, 2 streams"] = dataclasses.replace(
            options, bucket_views=True, streams=2, bucket_mb=8
        )
        if hosts.uniform and len(hosts.hosts[0]) > 1:
            both = dataclasses.replace(options, bucket_views=True, hierarchical=True)
            found |= {
                "hierarchical": both,
                "hierarchical, 2 streams": dataclasses.replace(both, streams=2, bucket_mb=8),
            }
    return found


def _has_room(way: Comm, hosts: topology.Topology, model: DDP) -> bool:
    """Return whether this host has twice the shared memory that a hierarchical strategy may need.

    Other strategies, and models on CUDA, need none: the result is True.
    """
    if not way.hierarchical or model.device.type == "cuda":
        return True
    sizes = [parameter.numel() * parameter.itemsize for parameter in model.module.parameters()]
    cap = int(way.bucket_mb * 2**20) if way.bucket_mb else model.bucket_bytes_cap
    rows = (len(hosts.local(dist.get_rank())) + 1) * way.streams
    try:
        folder = os.statvfs(FOLDER)
    except OSError:
        return False
    return 2 * rows * min(sum(sizes), 3 * cap // 2) < folder.f_bavail * folder.f_frsize


class Tuner:
    """Measurement that switches a DDP's strategy before some forward passes, until the choice.

    The constructor is a collective call.

    Args:
        model: the DistributedDataParallel to tune.
        ways: candidate options by name; `ddp` must be the first.
        rounds: turns of each candidate.
        block_steps: counted steps of a turn.
        confidence: of the interval that decides whether a candidate is faster.
        keep: whether to keep the choice in the cache folder and use a kept one.
    """

    def __init__(
        self,
        model: DDP,
        ways: Mapping[str, Comm],
        *,
        rounds: int = 4,
        block_steps: int = 5,
        confidence: float = 0.99,
        keep: bool = True,
    ) -> None:
        if next(iter(ways)) != PLAIN:
            raise InputError(
                f"the first candidate must be `{PLAIN}`, which the others are compared with."
            )
        self.ways, self.rounds, self.block_steps, self.confidence = (
            dict(ways),
            rounds,
            block_steps,
            confidence,
        )
        self.hosts = topology.find()
        self.chosen: str | None = None
        self.measured: dict[str, list[list[float]]] = {}
        """Seconds of the counted steps by turn, each of the slowest rank.

        Empty until the choice, and where the choice was kept from an earlier run.
        """
        self._model = weakref.ref(model)
        self._name = type(model.module).__name__
        self._key = f"gallery_lib/tuner/{next(_numbers)}"
        self._seconds: dict[str, list[list[float]]] = {name: [] for name in self.ways}
        self._order = self._turns()
        self._turn, self._current, self._step = 0, "", 0
        self._began: float | None = None
        self._backward_pass: weakref.ref[_BackwardPass] | None = None
        self.path = paths.cache_dir() / "comm" / f"{self._digest(model)}.json" if keep else None
        kept, problem = process_group.from_rank_0(self._read())
        if problem:
            raise InputError(problem)
        self.chosen = kept
        watched(model).before_forward = self._before_forward

    def _digest(self, model: DDP) -> str:
        facts = [
            [
                (name, tuple(parameter.shape), str(parameter.dtype))
                for name, parameter in model.module.named_parameters()
            ],
            self.hosts.hosts,
            {name: dataclasses.asdict(way) for name, way in self.ways.items()},
            torch.cuda.get_device_name() if model.device.type == "cuda" else hardware.processor(),
            torch.__version__,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]

    def _read(self) -> tuple[str | None, str]:
        """Return the kept choice or None, and what is wrong with its file or ''."""
        if self.path is None:
            return None, ""
        try:
            chosen = converted(
                read_json(self.path, dict[str, object], again="").get("chosen"), str, "chosen"
            )
        except FileNotFoundError:
            return None, ""
        except (InputError, Misfit) as error:
            if process_group.rank() == 0:
                set_aside(self.path, error)
            return None, ""
        if chosen not in self.ways:
            close = did_you_mean(chosen, self.ways)
            return (
                None,
                f"{self.path} chooses {chosen!r}, which is no candidate.{close} Known: "
                f"{', '.join(self.ways)}.",
            )
        return chosen, ""

    def _turns(self) -> Iterator[str]:
        for number in range(self.rounds):
            yield from self.ways if number % 2 == 0 else reversed(self.ways)

    @property
    def _turn_steps(self) -> int:
        return _SETTLING_STEPS + self.block_steps

    @torch._disable_dynamo
    def _before_forward(self) -> None:
        model = self._model()
        if model is None or not model.training or model._join_config.enable:
            return
        if self._backward_pass is not None and self._backward_pass() is not None:
            return  # no gradients were averaged since: another forward pass of one step
        self._step_begins(model)
        passing = _BackwardPass(model)
        future: torch.futures.Future[_BackwardPass] = torch.futures.Future()
        future.set_result(passing)
        # The reducer drops `passing` at the end of the backward pass.
        model.reducer._install_post_backward_futures([future])
        self._backward_pass = weakref.ref(passing)

    def _step_begins(self, model: DDP) -> None:
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._began is not None and self._step > _SETTLING_STEPS:
            self._seconds[self._current][-1].append(now - self._began)
        if self._step % self._turn_steps == 0:
            self._change(model)
        self._step += 1
        self._began = time.perf_counter()

    def _change(self, model: DDP) -> None:
        if not self._all_ranks_come():
            self._settle(
                model,
                PLAIN,
                f"a rank did not come to the same step within {_MEETING_SECONDS:.0f} s, "
                "so ways were not compared",
            )
            return
        if self.chosen is not None:
            self._settle(
                model,
                self.chosen,
                f"kept from an earlier run in {self.path}, which may be edited or deleted",
            )
            return
        if self._turn == 0:
            self._announce(model)
        name = next(self._order, None)
        if name is None:
            self._decide(model)
            return
        self._turn, self._step, self._current = self._turn + 1, 0, name
        self._seconds[name].append([])
        use_way(model, self.ways[name])

    def _all_ranks_come(self) -> bool:
        """Return whether each rank has come to this change of turns in time; same on all ranks.

        Ranks that come later get the same verdict.
        """
        store = dist.distributed_c10d._get_default_store()
        here, verdict = f"{self._key}/{self._turn}/here", f"{self._key}/{self._turn}/verdict"
        try:
            if store.add(here, 1) == dist.get_world_size():
                store.compare_set(verdict, "", "all")
            else:
                try:
                    store.wait([verdict], timedelta(seconds=_MEETING_SECONDS))
                except RuntimeError:  # timed out
                    store.compare_set(verdict, "", "not all")
            return bool(store.get(verdict) == b"all")
        except RuntimeError:  # the store has gone; what communicates next says so
            return False

    def _announce(self, model: DDP) -> None:
        steps = len(self.ways) * self.rounds * self._turn_steps
        views = (
            any(way.bucket_views for way in self.ways.values())
            and not model.gradient_as_bucket_view
        )
        say(
            f"{self._name}: {len(self.ways)} ways of averaging gradients take turns over the first "
            f"{steps} steps{_OVERWRITTEN * views}."
        )

    def _decide(self, model: DDP) -> None:
        slowest = {
            name: stats.slowest_rank(process_group.all_ranks(blocks))
            for name, blocks in self._seconds.items()
        }
        self.measured = slowest
        rows, best = (
            [["gradients averaged by", "step time p50", f"{PLAIN} over it (interval)", "verdict"]],
            (1.0, PLAIN),
        )
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
        say(text_table(rows))
        if self.path and dist.get_rank() == 0:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, {"chosen": chosen, "hosts": str(self.hosts), "table": rows})
            except OSError as error:  # the training goes on without
                say(f"{self._name}: the choice cannot be kept for the next run: {error}.")
        self._settle(model, chosen, "measured now")

    def _settle(self, model: DDP, chosen: str, origin: str) -> None:
        self.chosen = chosen
        stop_watching_steps(model)
        if self._turn > 0 or chosen != PLAIN:
            use_way(model, self.ways[chosen])
        views = self.ways[chosen].bucket_views and not model.gradient_as_bucket_view
        say(f"{self._name}: gradients are averaged by `{chosen}` ({origin}){_OVERWRITTEN * views}.")


class _BackwardPass:
    """Sentinel that lives until a reducer has averaged the gradients of a backward pass.

    The reducer holds it. At its end it has a new reducer order its buckets. DDP would do that in
    the next forward pass, as a collective call. A rank may make a forward pass that others do not,
    and every change of turns makes a new reducer.
    """

    def __init__(self, model: DDP) -> None:
        self._model = weakref.ref(model)

    def __del__(self) -> None:
        # Outside a backward pass the reducer itself is being deleted.
        with contextlib.suppress(RuntimeError):
            engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            # runs when the reducer is done
            engine.queue_callback(functools.partial(_order_buckets, self._model))


def _order_buckets(known: weakref.ref[DDP]) -> None:
    model = known()
    if model is not None and model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True


_OVERWRITTEN = (
    "; they may lie in DDP's buckets, "
    "so that a gradient which is kept over a step is overwritten by the next"
)


def apply(model: DDP, options: Comm) -> Tuner | None:
    """Have `model` average gradients as `options` say. A collective call.

    With `options.tune`, return a Tuner that chooses over the next steps; else return None.
    """
    if not options.tune or dist.get_world_size() == 1:
        accelerate_ddp(model, options)
        return None
    check_same_on_all_ranks(model, options, "comm.tune")
    hosts = topology.find()
    ways = candidates(options, hosts)
    room = process_group.all_ranks(
        {name: _has_room(way, hosts, model) for name, way in ways.items()}
    )
    return Tuner(
        model, {name: way for name, way in ways.items() if all(host[name] for host in room)}
    )
