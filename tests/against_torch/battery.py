"""Draw cases until the time is up, count what was tried, and find planted faults.

A failure is shrunk: each setting is put back to its default as long as the failure stays. One that
looks like an earlier one is only counted.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

import torch

from . import product
from .case import Case
from .launches import LAUNCHES, WITHOUT_CALL, Server
from .loaders import BATCHES, LOADERS
from .loops import LOOPS
from .models import MODELS
from .optimizers import OPTIMIZERS, SCHEDULERS
from .run import FAILED, Verdict, run

CONFIGS = ("plain",) * 8 + ("eager",) * 8 + ("contiguous",) * 2 + ("aot",) * 4 + ("inductor",)
"""Names of configurations, repeated by the share in which they are drawn."""
SPECIAL = ("double", "several_dtypes", "complex", "tied", "shared", "hooks", "batch_norm")
MODEL_SHARES = (*MODELS, *SPECIAL * 3)
"""Names of models; those that alone show a kind of fault are repeated to be drawn more often."""
DRAWN_LOADERS = [name for name, loader in LOADERS.items() if not loader.rare]
LAUNCH_SHARES = tuple(name for name, launch in LAUNCHES.items() for _ in range(launch.share))
SUBJECTS = ("model", "loader", "batch", "loop", "launch", "config", "call", "optimizer",
            "scheduler", "comm", "workers")  # fmt: skip


def valid(case: Case) -> bool:
    """Return whether plain PyTorch supports such a training, and the product such a call."""
    model, loader, ranks = MODELS[case.model], LOADERS[case.loader], LAUNCHES[case.launch].world
    several = ranks > 1
    lbfgs = case.optimizer == "lbfgs"
    return all(
        (
            not (loader.one_process and several),
            not (loader.only_list and case.batch != "list"),
            not (loader.endless and case.loop == "peek"),
            not model.optimizers or case.optimizer in model.optimizers,
            (case.optimizer == "sparse_adam") <= (case.model == "sparse"),
            lbfgs <= (case.loop == "closure" and case.call != "one_pass"),
            case.loop not in ("gan", "autocast") or model.dtype is torch.float32,
            not (case.loop == "clip" and case.model in ("sparse", "several_dtypes")),
            case.loop != "closure" or case.scheduler == "none",
            case.scheduler != "one_cycle" or case.optimizer != "adamw_tensor_rate",
            case.config != "inductor" or not several,
            case.launch not in WITHOUT_CALL
            or (case.config == "inductor" and case.call == "older" and not case.order),
            case.call in product.CALLS or (several and _by_user(case)),
            case.comm == "default" or several,
            # Ranks that divide a stream themselves have as many batches.
            not (several and case.loader == "stream_by_rank")
            or case.samples % (ranks * max(1, case.workers) * case.batch_size) == 0,
        )
    )


def _by_user(case: Case) -> bool:
    """Return whether a user can wrap the model in DDP.

    The loader has to divide itself, and the process group has to exist before.
    """
    return (
        LAUNCHES[case.launch].group == "before"
        and case.loader in ("distributed_sampler", "stream_by_rank")
        and case.config == "plain"
        and not MODELS[case.model].refusal
        and case.loop not in ("freeze", "gan", "two_backwards", "averaged_model")
    )


def drawn(random: Random) -> Case:
    """Return a drawn case that is valid."""
    while True:
        choose = random.choice
        launch = choose(LAUNCH_SHARES)
        several = LAUNCHES[launch].world > 1
        call = choose(product.CALLS + (product.CALLS_OF_RANKS if several else ()))
        model, loader, config = choose(MODEL_SHARES), choose(DRAWN_LOADERS), choose(CONFIGS)
        if call in product.CALLS_OF_RANKS:
            launch = choose(("two_group_before", "two_group_without_variables"))
            loader, config = choose(("distributed_sampler", "stream_by_rank")), "plain"
        elif several and config == "inductor":
            config = "aot"
        elif launch in WITHOUT_CALL:
            config, call = "inductor", "older"
        loop = choose(list(LOOPS))
        case = Case(
            model=model,
            loader=loader,
            batch="list" if LOADERS[loader].only_list else choose(list(BATCHES)),
            loop=loop,
            launch=launch,
            config=config,
            call=call,
            optimizer=choose(MODELS[model].optimizers or list(OPTIMIZERS)),
            scheduler="none" if loop == "closure" else choose(list(SCHEDULERS)),
            comm=choose(list(product.COMMS)) if several else "default",
            order=random.randrange(24) if call == "parts" else 0,
            samples=random.randint(5, 14),
            batch_size=random.randint(2, 4),
            epochs=random.randint(1, 3),
            workers=choose((0,) * 10 + (1, 2)),
            seed=random.randrange(4),
        )
        if valid(case):
            return case


@dataclass
class Tally:
    """Counts of the cases that were run, by kind and outcome, and the failures in shrunk form."""

    total: int = 0
    counts: dict[str, Counter[str]] = field(
        default_factory=lambda: {s: Counter() for s in (*SUBJECTS, "outcome")}
    )
    failures: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Add one case to the counts."""
        self.total += 1
        for subject, counts in self.counts.items():
            counts[str(getattr(verdict.case, subject, verdict.outcome))] += 1


def battery(seed: int, seconds: float, jobs: int) -> Tally:
    """Run drawn cases, `jobs` at a time, for `seconds`, print new failures, return the tally."""
    server, random, until = Server(), Random(seed), time.monotonic() + seconds
    tally, signatures = Tally(), set[str]()
    with ThreadPoolExecutor(jobs) as pool:
        while time.monotonic() < until:
            cases = [drawn(random) for _ in range(2 * jobs)]
            for verdict in pool.map(lambda case: run(case, server), cases):
                tally.add(verdict)
                if verdict.outcome != FAILED or verdict.signature in signatures:
                    continue
                signatures.add(verdict.signature)
                tally.failures.append(smallest := _shrunk(verdict, server))
                print(smallest.report(4))
    return tally


def _shrunk(verdict: Verdict, server: Server) -> Verdict:
    """Return the same failure with as many settings at their defaults as it has without them."""
    for setting in dataclasses.fields(Case):
        case = dataclasses.replace(verdict.case, **{setting.name: setting.default})
        if case == verdict.case or not valid(case):
            continue
        other = run(case, server)
        if other.signature == verdict.signature:
            verdict = other
    return verdict


def find_planted(name: str, seed: int, seconds: float, server: Server | None = None) -> str:
    """Return a drawn case that fails with the fault planted and passes without it, or ''.

    The text also says how many cases and seconds the search took.
    """
    server, random, began, tried = server or Server(), Random(seed), time.monotonic(), 0
    while (took := time.monotonic() - began) < seconds:
        case, tried = drawn(random), tried + 1
        wrong = run(dataclasses.replace(case, planted=name), server)
        if wrong.outcome == FAILED and run(case, server).outcome != FAILED:
            lines = f"{case.json()}: {wrong.lines[0][:120]}"
            return f"found after {tried} cases, {took:.0f} s: {lines}"
    return ""
