"""`python -m tests.against_torch`: draw trainings for some time, run one again, or plant faults."""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor

from . import planted, table
from .battery import battery, find_planted
from .case import Case
from .launches import Server
from .run import FAILED, run


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for and return the exit code.

    The code is 1 when a case failed or a planted fault was not found.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.against_torch", description=__doc__)
    add = parser.add_argument
    add("--hours", type=float, default=0.0, help="how long to draw cases")
    add("--minutes", type=float, default=0.0, help="the same; with --planted, for each fault")
    add("--seed", type=int, help="seed of the draws; default: a new one, which is printed")
    add("--case", help="run this case (JSON), and print the differences")
    add("--planted", nargs="*", metavar="FAULT", help="find these planted faults; none named: all")
    add("--table", action="store_true", help="write docs/guides/what_works.md")
    add("--jobs", type=int, default=2, help="cases at the same time; default: 2")
    options = parser.parse_args(arguments)
    if options.case:
        verdict = run(Case.of(options.case), Server())
        print(verdict.outcome, *verdict.lines, sep="\n  ")
        return verdict.outcome == FAILED
    if options.table:
        return table.write(options.jobs)
    seconds = options.hours * 3600 + options.minutes * 60 or 600.0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    if options.planted is not None:
        return _planted(options.planted or list(planted.FAULTS), seed, seconds, options.jobs)
    tally = battery(seed, seconds, options.jobs)
    for subject, counts in tally.counts.items():
        numbers = (f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"{subject}: {', '.join(numbers)}")
    print(f"{tally.total} cases, {len(tally.failures)} failures")
    for verdict in tally.failures:
        print(verdict.report(8))
    return bool(tally.failures)


def _planted(names: list[str], seed: int, seconds: float, jobs: int) -> int:
    lost, server = [], Server()
    with ThreadPoolExecutor(jobs) as pool:
        searches = pool.map(lambda name: find_planted(name, seed, seconds, server), names)
        for name, found in zip(names, searches, strict=True):
            print(f"{name}: {found or f'NOT FOUND in {seconds / 60:g} minutes'}", flush=True)
            lost += [] if found else [name]
    print(f"{len(names) - len(lost)} of {len(names)} planted faults found")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
