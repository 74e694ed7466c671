"""Can the comparison be believed? Baseline against itself, and against planted defects.

    python benchmarks/trust.py --out benchmarks/results/trust-MACHINE.json

20 comparisons of ResNet-50 with itself must nearly all say `no measurable difference`; a variant slowed by 5 % must be
called `slower`; one with a wrong gradient must be `not comparable`, at O0 and at O1. Small images, so that it takes
minutes; every comparison starts processes of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import conditions, write_result

from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.measure.compare import compare

PLANTED = Path(__file__).resolve().parent / "planted.py"
SMALL = TrainConfig(batch_size=4, image_size=32, warmup_steps=6, evaluate=False, workers=1)
EXPECTED = {
    "same": ("no measurable difference", 18, 20),
    "slower by 5 %": ("slower", 9, 10),
    "wrong gradient, O0": ("not comparable", 5, 5),
    "wrong gradient, O1": ("not comparable", 5, 5),
}


def variants(kind: str, seed: int) -> dict[str, TrainConfig]:
    """Baseline, and what is compared with it."""
    level = "O1" if kind.endswith("O1") else "O0"
    name = {"same": "SAME", "slower by 5 %": "SLOW", "wrong gradient, O0": "WRONG_O0", "wrong gradient, O1": "WRONG_O1"}[kind]
    base = dataclasses.replace(SMALL, amp_level=level, seed=seed)
    return {"baseline": base, "candidate": dataclasses.replace(base, model=f"{PLANTED}:{name}")}


def one(kind: str, seed: int, rounds: int) -> dict[str, Any]:
    """One comparison, reduced to what is judged."""
    began = time.time()
    with TemporaryDirectory() as folder:
        options = CompareConfig(rounds=rounds if "wrong" not in kind else 4, block_steps=8 if "wrong" not in kind else 2)
        outcome = compare(variants(kind, seed), LaunchConfig(), options, folder=Path(folder), progress=False)
    interval = dataclasses.asdict(outcome.speedup) if outcome.speedup else None
    row = {"kind": kind, "seed": seed, "verdict": outcome.verdict, "speedup": interval, "parity": outcome.parity.as_json()["checks"]}
    shown = f"{interval['ratio']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})" if interval else ""
    print(f"{kind:20} seed {seed:2}  {outcome.verdict:26} {shown}  [{time.time() - began:.0f} s]", flush=True)
    return row


def main() -> int:
    """Run all; exit code 1 when any kind misses what is expected of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16, help="turns of each variant (default: 16)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--only", choices=list(EXPECTED), help="one kind only")
    arguments = parser.parse_args()
    rows = []
    summary = {}
    for kind, (verdict, least, count) in EXPECTED.items():
        if arguments.only not in (None, kind):
            continue
        mine = [one(kind, seed, arguments.rounds) for seed in range(count)]
        rows += mine
        found = Counter(row["verdict"] for row in mine)
        summary[kind] = {"expected": verdict, "at_least": least, "of": count, "found": dict(found), "met": found[verdict] >= least}
        print(
            f"{kind}: {verdict} {found[verdict]} of {count}, at least {least} asked: {'met' if found[verdict] >= least else 'MISSED'}\n",
            flush=True,
        )
    if arguments.out:
        write_result(arguments.out, {**conditions(), "rounds": arguments.rounds, "summary": summary, "comparisons": rows})
    return 0 if all(s["met"] for s in summary.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
