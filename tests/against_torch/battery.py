"""Draw cases in several processes until the time is up, and count what was tried.

A failure is shrunk for at most SHRINK_SECONDS. A failure that looks like an earlier one is only
counted, and drawing goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing as mp
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from gallery_lib.system.processes import die_with_parent

from .case import Case
from .draw import cases
from .launches import Server
from .run import FAILED, Verdict, run

SHRINK_SECONDS = 30.0
SUBJECTS = (
    "model",
    "loader",
    "batch",
    "loop",
    "launch",
    "config",
    "call",
    "optimizer",
    "scheduler",
    "comm",
    "workers",
)
CHUNK = 40
"""Number of cases that Hypothesis draws from one seed."""


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
        self.counts["outcome"][verdict.outcome] += 1
        for subject in SUBJECTS:
            self.counts[subject][str(getattr(verdict.case, subject))] += 1


class _Found(Exception):
    """Raised for a case that failed, so that Hypothesis shrinks it."""


def draw(
    seed: int,
    examples: int,
    server: Server,
    told: Callable[[Verdict], None],
    known: set[str],
    until: float,
) -> Verdict | None:
    """Run drawn cases and return the first new failure, shrunk, or None.

    Args:
        seed: seed of Hypothesis's draws.
        examples: largest number of cases.
        server: starts the processes of each case.
        told: is called with each verdict.
        known: signatures of failures that do not count as new.
        until: value of `time.monotonic()` at which drawing ends.
    """
    verdicts: dict[Case, Verdict] = {}
    smallest: list[Verdict] = []
    shrink_until = [float("inf")]

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(cases())
    def one(case: Case) -> None:
        if case not in verdicts:
            if time.monotonic() > min(until, shrink_until[0]):
                return
            verdicts[case] = run(case, server)
            told(verdicts[case])
        verdict = verdicts[case]
        if verdict.outcome == FAILED and verdict.signature not in known:
            if smallest and verdict.signature != smallest[0].signature:
                return  # another fault: it is not what is being shrunk
            shrink_until[0] = min(shrink_until[0], time.monotonic() + SHRINK_SECONDS)
            smallest[:] = [verdict]
            raise _Found

    try:
        one()
    except BaseException as error:
        if not smallest or isinstance(error, KeyboardInterrupt):
            raise
    return smallest[0] if smallest else None


def _work(seed: int, seconds: float, results: Any) -> None:
    """Draw chunk after chunk, and send each verdict and each shrunk failure to the parent."""
    die_with_parent()
    server, known, until = Server(), set[str](), time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        failure = draw(
            seed + 1000 * number, CHUNK, server, lambda v: results.put(("case", v)), known, until
        )
        if failure is not None:
            known.add(failure.signature)
            results.put(("failure", failure))
        number += 1
    results.put(("end", None))


def battery(seed: int, seconds: float, jobs: int, told: Callable[[str], None] = print) -> Tally:
    """Draw cases in `jobs` processes for `seconds` and return the tally.

    Each new failure is passed to `told` at once.
    """
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_work, args=(seed + job, seconds, results)) for job in range(jobs)
    ]
    for process in processes:
        process.start()
    tally, at_work = Tally(), jobs
    signatures: set[str] = set()
    while at_work:
        try:
            kind, verdict = results.get(timeout=5)
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                raise RuntimeError("a process of the battery has ended before its time") from None
            continue
        if kind == "end":
            at_work -= 1
        elif kind == "case":
            tally.add(verdict)
        elif verdict.signature not in signatures:
            signatures.add(verdict.signature)
            tally.failures.append(verdict)
            told(f"FAILED --case '{verdict.case.json()}'\n  " + "\n  ".join(verdict.lines[:4]))
    for process in processes:
        process.join()
    return tally


def find_planted(name: str, seed: int, seconds: float) -> str:
    """Return a drawn case that fails with the fault planted and passes without it, or ''.

    The text also says how many cases and seconds the search took.
    """
    server, until, began = Server(), time.monotonic() + seconds, time.monotonic()
    tried = 0
    found: list[str] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=100_000,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def one(case: Case) -> None:
        nonlocal tried
        if found or time.monotonic() > until:
            raise _Found
        tried += 1
        wrong = run(dataclasses.replace(case, planted=name), server)
        if wrong.outcome == FAILED and run(case, server).outcome != FAILED:
            took = time.monotonic() - began
            found.append(
                f"found after {tried} cases, {took:.0f} s: {case.json()}: {wrong.lines[0][:120]}"
            )
            raise _Found

    with contextlib.suppress(_Found):
        one()
    return found[0] if found else ""
