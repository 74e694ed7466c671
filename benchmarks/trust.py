"""Test whether comparisons can be believed: baseline against itself, and against planted defects.

    python3 benchmarks/trust.py --out benchmarks/results/MACHINE/trust.json
    python3 benchmarks/trust.py --out … --only "wrong gradient, O1"

It takes an hour of a machine that does nothing else. What is already in the file is not measured
again, so the measurement can be interrupted and go on later. Delete the file to begin anew.

20 comparisons of a small network with itself must nearly all say `no measurable difference`, with
glibc's allocator as it comes, and with large blocks kept (memory/allocator.py). A variant slowed by
5 % must be called `slower`. ResNet-50 with one wrong gradient must be `not comparable`, at O0 and
at O1, five times each (planted.py). Every comparison starts processes of its own.

With the allocator as it comes, processes with the same code differ by more than 5 % for as long as
they live (gallery_lib/measure/comparison/process_spread.py). Intervals allow for that, so 5 % can
only be found with large blocks kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, measured_before, out_file, write_result

from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.measure.comparison import process_spread
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.memory import allocator

PLANTED = Path(__file__).resolve().parent / "planted.py"
SMALL = TrainConfig(
    model=f"{PLANTED}:SAME", amp_level="O0", warmup_steps=20, evaluate=False, workers=0
)
RESNET50 = TrainConfig(amp_level="O1", batch_size=16, image_size=64, evaluate=False, workers=0)
WRONG = TrainConfig(
    amp_level="O0", batch_size=4, image_size=32, warmup_steps=6, evaluate=False, workers=0
)
MANY_TURNS, FEW_TURNS = (
    CompareConfig(rounds=100, block_steps=4),
    CompareConfig(rounds=4, block_steps=2),
)


@dataclass(frozen=True)
class Kind:
    """One kind of comparison: a baseline, the model compared with it, and the expected verdict.

    The verdict must come at least `at_least` times in `of` comparisons.
    """

    baseline: TrainConfig
    model: str
    turns: CompareConfig
    expected: str
    at_least: int
    of: int
    keeps_large_blocks: bool = False

    def compare(self, seed: int, rounds: int, folder: Path) -> Any:
        """Run one comparison; `rounds` applies to kinds of many turns."""
        baseline = dataclasses.replace(self.baseline, seed=seed)
        variants = {
            "baseline": baseline,
            "candidate": dataclasses.replace(baseline, model=self.model),
        }
        with mock.patch.dict(
            os.environ, allocator.allocator_variables() if self.keeps_large_blocks else {}
        ):
            turns = (
                dataclasses.replace(self.turns, rounds=rounds)
                if self.turns is MANY_TURNS
                else self.turns
            )
            return compare(variants, LaunchConfig(), turns, folder=folder, progress=False)


SAME = Kind(SMALL, SMALL.model, MANY_TURNS, "no measurable difference", 18, 20)
KINDS = {
    "same": SAME,
    "same, large blocks kept": dataclasses.replace(SAME, keeps_large_blocks=True),
    "slower by 5 %, large blocks kept": Kind(
        SMALL, f"{PLANTED}:SLOW", MANY_TURNS, "slower", 9, 10, keeps_large_blocks=True
    ),
    "same, ResNet-50": Kind(
        RESNET50,
        RESNET50.model,
        CompareConfig(rounds=12, block_steps=4),
        "no measurable difference",
        5,
        5,
    ),
    "wrong gradient, O0": Kind(WRONG, f"{PLANTED}:WRONG_O0", FEW_TURNS, "not comparable", 5, 5),
    "wrong gradient, O1": Kind(
        dataclasses.replace(WRONG, amp_level="O1"),
        f"{PLANTED}:WRONG_O1",
        FEW_TURNS,
        "not comparable",
        5,
        5,
    ),
}


def run_comparison(name: str, seed: int, rounds: int) -> dict[str, Any]:
    """Run one comparison, and return what is judged."""
    began = time.time()
    with TemporaryDirectory() as folder:
        outcome = KINDS[name].compare(seed, rounds, Path(folder))
    interval = dataclasses.asdict(outcome.speedup) if outcome.speedup else None
    row = {
        "kind": name,
        "seed": seed,
        "verdict": outcome.verdict,
        "speedup": interval,
        "parity": outcome.parity.as_json()["checks"],
    }
    variants = outcome.variants.values()
    row |= {
        "page_faults": [results.page_faults for results in variants],
        "process_spread": process_spread.of_ratio(*variants),
    }
    ratio = (
        f"{interval['ratio']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"
        if interval
        else ""
    )
    print(
        f"{name:32} seed {seed:2}  {outcome.verdict:26} {ratio}  [{time.time() - began:.0f} s]",
        flush=True,
    )
    return row


def main() -> int:
    """Run all comparisons; return 1 when any kind misses what is expected of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=MANY_TURNS.rounds,
        help="turns of each variant of the small network; fewer are quicker and may miss 5 %% "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=out_file,
        help="JSON file for the figures; what it has is not measured again (default: printed only)",
    )
    parser.add_argument(
        "--only",
        choices=list(KINDS),
        help="the one kind of comparison to make (default: all, which take an hour)",
    )
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = measured_before(arguments.out, "comparisons") or []
    for name in [arguments.only] if arguments.only else KINDS:
        for seed in range(KINDS[name].of):
            if any(row["kind"] == name and row["seed"] == seed for row in rows):
                continue
            rows.append(run_comparison(name, seed, arguments.rounds))
            if arguments.out:
                write_result(
                    arguments.out,
                    {
                        **conditions(),
                        "rounds": arguments.rounds,
                        "summary": summary(rows),
                        "comparisons": rows,
                    },
                )
    for name, outcome in summary(rows).items():
        print(
            f"{name}: {outcome['expected']} {outcome['found'].get(outcome['expected'], 0)} of "
            f"{outcome['of']}: {outcome['outcome']}"
        )
    return 1 if any(outcome["outcome"] == "missed" for outcome in summary(rows).values()) else 0


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was asked of each kind, and what was found."""
    result = {}
    for name, kind in KINDS.items():
        verdicts = Counter(row["verdict"] for row in rows if row["kind"] == name)
        outcome = (
            "not finished"
            if verdicts.total() < kind.of
            else "met"
            if verdicts[kind.expected] >= kind.at_least
            else "missed"
        )
        result[name] = {
            "expected": kind.expected,
            "at_least": kind.at_least,
            "of": kind.of,
            "found": dict(verdicts),
            "outcome": outcome,
        }
    return result


if __name__ == "__main__":
    sys.exit(exit_code(main))
