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
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gallery_lib import stats
from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.preconditions import check_same_on_all_ranks
from gallery_lib.comm.rebuild import DDP, SETTLING_STEPS
from gallery_lib.comm.shared_memory import FOLDER
from gallery_lib.comm.strategy import say, stop_watching_steps, use_strategy, watched
from gallery_lib.comm.topology import Topology
from gallery_lib.config import Comm
from gallery_lib.console.table import seconds, text_table
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import Misfit, converted, read_json, set_aside, write_json

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
        strategies: candidate options by name; `ddp` must be the first.
        rounds: turns of each candidate.
        block_steps: counted steps of a turn.
        confidence: of the interval that decides whether a candidate is faster.
        keep: whether to keep the choice in the cache folder and use a kept one.
    """

    def __init__(
        self,
        model: DDP,
        strategies: Mapping[str, Comm],
        *,
        rounds: int = 4,
        block_steps: int = 5,
        confidence: float = 0.99,
        keep: bool = True,
    ) -> None:
        if next(iter(strategies)) != PLAIN:
            raise InputError(
                f"the first candidate must be `{PLAIN}`, which the others are compared with.",
                parameter="candidates",
            )
        self.strategies, self.confidence = dict(strategies), confidence
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
        self.path = choice_path(model, self.hosts, self.strategies) if keep else None
        if self.path is not None:
            self.choice = read_choice(self.path, list(self.strategies))
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
        if model is None or not model.training or model._join_config.enable:
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
        if not all_ranks_arrive(f"{self._key}/{self._turn}", _MEETING_SECONDS):
            self._settle(
                model,
                PLAIN,
                f"a rank did not come to the same step within {_MEETING_SECONDS:.0f} s, "
                "so ways were not compared",
            )
            return
        if self.choice is not None:
            self._settle(
                model,
                self.choice,
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
        use_strategy(model, self.strategies[name])

    def _announce(self, model: DDP) -> None:
        steps = len(self.strategies) * self.rounds * self._turn_steps
        views = (
            any(strategy.bucket_views for strategy in self.strategies.values())
            and not model.gradient_as_bucket_view
        )
        say(
            f"{self._name}: {len(self.strategies)} ways of averaging gradients take turns over the "
            f"first {steps} steps{_OVERWRITTEN * views}."
        )

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
                write_choice(self.path, choice, self.hosts, table)
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
            ratio = stats.ratio_of_medians(self.measured[PLAIN], blocks, confidence=self.confidence)
            rows.append([name, p50, str(ratio), ratio.verdict])
            if ratio.verdict == "faster" and ratio.ratio > best_ratio:
                best_ratio, fastest = ratio.ratio, name
        return rows, fastest

    def _settle(self, model: DDP, choice: str, origin: str) -> None:
        self.choice = choice
        stop_watching_steps(model)
        if self._turn > 0 or choice != PLAIN:
            use_strategy(model, self.strategies[choice])
        views = self.strategies[choice].bucket_views and not model.gradient_as_bucket_view
        say(f"{self._name}: gradients are averaged by `{choice}` ({origin}){_OVERWRITTEN * views}.")


def apply(model: DDP, options: Comm) -> Tuner | None:
    """Have `model` average gradients as `options` say. A collective call.

    With `options.tune`, return a Tuner that chooses over the next steps; else return None.
    """
    if not options.tune or dist.get_world_size() == 1:
        accelerate_ddp(model, options)
        return None
    check_same_on_all_ranks(model, options, "comm.tune")
    return Tuner(model, candidates_with_room(model, options, topology.find()))


# --------------------------------------------------------------------------------------------------
# Notice when a reducer has averaged the gradients of a backward pass, and order its buckets then.
#
# The reducer holds a sentinel until that moment. DDP would order the buckets of a new reducer in
# the next forward pass, as a collective call. A rank may make a forward pass that others do not,
# and every change of strategy makes a new reducer.


class BackwardPass:
    """Sentinel that lives until the reducer of `model` has averaged the gradients."""

    def __init__(self, model: DDP) -> None:
        self._model = weakref.ref(model)

    def __del__(self) -> None:
        # Outside a backward pass the reducer itself is being deleted.
        with contextlib.suppress(RuntimeError):
            engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            # runs when the reducer is done
            engine.queue_callback(functools.partial(_order_buckets, self._model))


def expect_backward_pass(model: DDP) -> weakref.ref[BackwardPass]:
    """Return a reference to the sentinel of the next backward pass; dead once that has ended."""
    sentinel = BackwardPass(model)
    future: torch.futures.Future[BackwardPass] = torch.futures.Future()
    future.set_result(sentinel)
    # The reducer drops the sentinel at the end of the backward pass.
    model.reducer._install_post_backward_futures([future])
    return weakref.ref(sentinel)


def _order_buckets(reference: weakref.ref[DDP]) -> None:
    model = reference()
    if model is not None and model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True


# --------------------------------------------------------------------------------------------------
# Candidates of the tuner: strategies for averaging gradients on these hosts.


PLAIN = "ddp"
"""Name of the candidate that is plain DDP."""


def candidates(options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the candidates by name, plain DDP first.

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


def candidates_with_room(model: DDP, options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the candidates for which every host has shared memory. A collective call."""
    strategies = candidates(options, hosts)
    room = process_group.all_ranks(
        {name: _has_room(strategy, hosts, model) for name, strategy in strategies.items()}
    )
    return {
        name: strategy
        for name, strategy in strategies.items()
        if all(on_rank[name] for on_rank in room)
    }


def _has_room(strategy: Comm, hosts: Topology, model: DDP) -> bool:
    """Return whether this host has twice the shared memory that a hierarchical strategy may need.

    Other strategies, and models on CUDA, need none: the result is True.
    """
    if not strategy.hierarchical or model.device.type == "cuda":
        return True
    sizes = [parameter.numel() * parameter.itemsize for parameter in model.module.parameters()]
    cap = int(strategy.bucket_mb * 2**20) if strategy.bucket_mb else model.bucket_bytes_cap
    rows = (len(hosts.local(dist.get_rank())) + 1) * strategy.streams
    try:
        folder = os.statvfs(FOLDER)
    except OSError:
        return False
    return 2 * rows * min(sum(sizes), 3 * cap // 2) < folder.f_bavail * folder.f_frsize


# --------------------------------------------------------------------------------------------------
# Cache of the tuner's choices: a JSON file for each model, hosts, candidates, device and torch.


def choice_path(model: DDP, hosts: Topology, strategies: Mapping[str, Comm]) -> Path:
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


def read_choice(path: Path, names: Sequence[str]) -> str | None:
    """Return the choice that rank 0 has in its file, or None. A collective call.

    A file that cannot be read is set aside.

    Raises:
        InputError: for a choice that is none of `names`.
    """
    choice, problem = process_group.from_rank_0(_choice_and_problem(path, names))
    if problem:
        raise InputError(problem, parameter=str(path))
    return choice


def _choice_and_problem(path: Path, names: Sequence[str]) -> tuple[str | None, str]:
    """Return the choice or None, and what is wrong with its file or ''."""
    try:
        choice = converted(
            read_json(path, dict[str, object], again="").get("chosen"), str, "chosen"
        )
    except FileNotFoundError:
        return None, ""
    except (InputError, Misfit) as error:
        if process_group.rank() == 0:
            set_aside(path, error)
        return None, ""
    if choice not in names:
        return (
            None,
            f"{path} chooses {choice!r}, which is no candidate.{did_you_mean(choice, names)} "
            f"Known: {', '.join(names)}.",
        )
    return choice, ""


def write_choice(path: Path, choice: str, hosts: Topology, table: list[list[str]]) -> None:
    """Write the choice, with the figures that led to it.

    Raises:
        OSError: where that fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"chosen": choice, "hosts": str(hosts), "table": table})


# --------------------------------------------------------------------------------------------------
# Barrier with a time limit in the run's store, for ranks that may be waited for elsewhere.


def all_ranks_arrive(key: str, limit_seconds: float) -> bool:
    """Return whether each rank has come to the barrier `key` in time; same on all ranks.

    Ranks that come later get the same verdict.
    """
    store = dist.distributed_c10d._get_default_store()
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
