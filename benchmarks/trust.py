"""Can the comparison be believed? Baseline against itself, and against planted defects.

    python benchmarks/trust.py --out benchmarks/results/trust-MACHINE.json

It takes half an hour of a machine that does nothing else. What is already in the file is not measured again, so it
can be interrupted and go on later; delete the file to begin anew.

20 comparisons of a small network with itself must nearly all say `no measurable difference`; a variant slowed by 5 %
must be called `slower`; ResNet-50 with one wrong gradient must be `not comparable`, at O0 and at O1, five times each
(planted.py). Every comparison starts processes of its own. The small network keeps its large blocks (compiler/allocator.py): as
glibc comes, two processes of it with the same code can differ by 10 % for as long as they live, by which pages of memory they
happened to get. `same, allocator as it comes` shows whether that is so on this machine; of a task's own size see notes.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import conditions, write_result

from gallery_lib.compiler import allocator
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.measure.compare import compare

PLANTED = Path(__file__).resolve().parent / "planted.py"
WRONG = TrainConfig(batch_size=4, image_size=32, warmup_steps=6, evaluate=False, workers=0)
SPEED = TrainConfig(model=f"{PLANTED}:SAME", warmup_steps=20, evaluate=False, workers=0)
BLOCK_STEPS = 4
EXPECTED = {
    "same": ("no measurable difference", 18, 20),
    "slower by 5 %": ("slower", 9, 10),
    "same, allocator as it comes": ("no measurable difference", 9, 10),
    "wrong gradient, O0": ("not comparable", 5, 5),
    "wrong gradient, O1": ("not comparable", 5, 5),
}


def variants(kind: str, seed: int) -> dict[str, TrainConfig]:
    """Baseline, and what is compared with it."""
    wrong = kind.startswith("wrong")
    base = dataclasses.replace(WRONG if wrong else SPEED, amp_level="O1" if kind.endswith("O1") else "O0", seed=seed)
    names = {"slower by 5 %": "SLOW", "wrong gradient, O0": "WRONG_O0", "wrong gradient, O1": "WRONG_O1"}
    return {"baseline": base, "candidate": dataclasses.replace(base, model=f"{PLANTED}:{names.get(kind, 'SAME')}")}


def keep_large_blocks(kind: str) -> None:
    """Whether processes started from now on do, by the variables that they inherit."""
    for name, value in allocator.environment().items():
        if kind in ("same", "slower by 5 %"):
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def one(kind: str, seed: int, rounds: int) -> dict[str, Any]:
    """One comparison, reduced to what is judged."""
    began = time.time()
    keep_large_blocks(kind)
    with TemporaryDirectory() as folder:
        options = CompareConfig(rounds=4, block_steps=2) if "wrong" in kind else CompareConfig(rounds=rounds, block_steps=BLOCK_STEPS)
        outcome = compare(variants(kind, seed), LaunchConfig(), options, folder=Path(folder), progress=False)
    interval = dataclasses.asdict(outcome.speedup) if outcome.speedup else None
    row = {"kind": kind, "seed": seed, "verdict": outcome.verdict, "speedup": interval, "parity": outcome.parity.as_json()["checks"]}
    shown = f"{interval['ratio']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})" if interval else ""
    print(f"{kind:20} seed {seed:2}  {outcome.verdict:26} {shown}  [{time.time() - began:.0f} s]", flush=True)
    return row


def main() -> int:
    """Run all; exit code 1 when any kind misses what is expected of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="turns of each variant (default: 100)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--only", choices=list(EXPECTED), help="one kind only")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.out.read_text())["comparisons"] if arguments.out and arguments.out.exists() else []
    for kind, (_, _, count) in EXPECTED.items():
        for seed in range(count if arguments.only in (None, kind) else 0):
            if any(row["kind"] == kind and row["seed"] == seed for row in rows):
                continue
            rows.append(one(kind, seed, arguments.rounds))
            if arguments.out:
                write_result(arguments.out, {**conditions(), "rounds": arguments.rounds, "summary": summary(rows), "comparisons": rows})
    for kind, outcome in summary(rows).items():
        print(f"{kind}: {outcome['expected']} {outcome['found'].get(outcome['expected'], 0)} of {outcome['of']}: {outcome['outcome']}")
    return 1 if any(outcome["outcome"] == "missed" for outcome in summary(rows).values()) else 0


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What was asked of each kind, and what was found."""
    result = {}
    for kind, (verdict, least, count) in EXPECTED.items():
        found = Counter(row["verdict"] for row in rows if row["kind"] == kind)
        outcome = "not finished" if found.total() < count else "met" if found[verdict] >= least else "missed"
        result[kind] = {"expected": verdict, "at_least": least, "of": count, "found": dict(found), "outcome": outcome}
    return result


if __name__ == "__main__":
    sys.exit(main())
