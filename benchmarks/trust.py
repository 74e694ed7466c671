"""Test whether comparisons can be believed: baseline against itself, and against planted defects.

    python3 benchmarks/trust.py --out benchmarks/results/MACHINE/trust.json
    python3 benchmarks/trust.py --out … --only "wrong gradient, O1"

It takes an hour of a machine that does nothing else. What is already in the file is not measured
again. 20 comparisons of a small network with itself must nearly all say `no measurable difference`,
with glibc's allocator as it comes, and with large blocks kept (memory.py). A variant
slowed by 5 % must be called `slower`. ResNet-50 with one wrong gradient must be `not comparable`,
at O0 and at O1, five times each (planted.py). Every comparison starts processes of its own.

With the allocator as it comes, intervals allow for processes that differ by more than 5 %
(gallery_lib/measure/comparison/pair.py), so 5 % can only be found with large blocks kept.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import figures_file

from gallery_lib import memory
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.measure.comparison import pair
from gallery_lib.measure.comparison.compare import compare

PLANTED = figures_file.HERE / "planted.py"
COMMON: dict[str, Any] = {"evaluate": False, "workers": 0}
SMALL = TrainConfig(model=f"{PLANTED}:SAME", amp_level="O0", warmup_steps=20, **COMMON)
RESNET50 = TrainConfig(amp_level="O1", batch_size=16, image_size=64, **COMMON)
WRONG = TrainConfig(amp_level="O0", batch_size=4, image_size=32, warmup_steps=6, **COMMON)


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
        """Run one comparison of at most `rounds` rounds."""
        baseline = dataclasses.replace(self.baseline, seed=seed)
        candidate = dataclasses.replace(baseline, model=self.model)
        turns = dataclasses.replace(self.turns, rounds=min(rounds, self.turns.rounds))
        variables = memory.allocator_variables() if self.keeps_large_blocks else {}
        with mock.patch.dict(os.environ, variables):
            variants = {"baseline": baseline, "candidate": candidate}
            return compare(variants, LaunchConfig(), turns, folder=folder, progress=False)


NO_DIFFERENCE = "no measurable difference"
MANY, SOME, FEW = (CompareConfig(rounds=n, block_steps=b) for n, b in ((100, 4), (12, 4), (4, 2)))
SAME = Kind(SMALL, SMALL.model, MANY, NO_DIFFERENCE, 18, 20)
REFUSED = Kind(WRONG, f"{PLANTED}:WRONG_O0", FEW, "not comparable", 5, 5)
KINDS = {
    "same": SAME,
    "same, large blocks kept": dataclasses.replace(SAME, keeps_large_blocks=True),
    "slower by 5 %, large blocks kept": Kind(
        SMALL, f"{PLANTED}:SLOW", MANY, "slower", 9, 10, keeps_large_blocks=True
    ),
    "same, ResNet-50": Kind(RESNET50, RESNET50.model, SOME, NO_DIFFERENCE, 5, 5),
    "wrong gradient, O0": REFUSED,
    "wrong gradient, O1": dataclasses.replace(
        REFUSED, baseline=dataclasses.replace(WRONG, amp_level="O1"), model=f"{PLANTED}:WRONG_O1"
    ),
}


def run_comparison(name: str, seed: int, rounds: int) -> dict[str, Any]:
    """Run one comparison, print its verdict, and return what is judged."""
    with TemporaryDirectory() as folder:
        outcome = KINDS[name].compare(seed, rounds, Path(folder))
    print(f"{name}, seed {seed}: {outcome.verdict} {outcome.speedup or ''}", flush=True)
    variants = outcome.variants.values()
    return {
        "kind": name,
        "seed": seed,
        "verdict": outcome.verdict,
        "speedup": dataclasses.asdict(outcome.speedup) if outcome.speedup else None,
        "parity": [dataclasses.asdict(check) for check in outcome.parity.checks],
        "page_faults": [results.page_faults for results in variants],
        "process_spread": pair.process_spread(*variants),
    }


def rows_of(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table of what was asked of each kind, and what was found."""
    table = [["compared", "asked", "found", "ratios", "page faults a step", "outcome"]]
    for name, kind in KINDS.items():
        own = [one for one in found if one["kind"] == name]
        right = sum(one["verdict"] == kind.expected for one in own)
        ratios = [one["speedup"]["ratio"] for one in own if one["speedup"]]
        faults = [count for one in own for count in one["page_faults"]]
        outcome = "met" if right >= kind.at_least else "missed"
        cells = (
            f"{kind.expected} in {kind.at_least} of {kind.of}",
            f"{right} of {len(own)}",
            f"{min(ratios):.3f} to {max(ratios):.3f}" if ratios else "–",
            f"{min(faults):.0f} to {max(faults):.0f}" if faults else "–",
            outcome if len(own) >= kind.of else "not finished",
        )
        table.append([name, *cells])
    return table


def main() -> int:
    """Run all comparisons; return 1 when any kind misses what is expected of it."""
    parser = figures_file.parser(__doc__)
    figures_file.add_numbers(parser, rounds=(100, "turns of each variant at most"))
    parser.add_argument("--only", choices=list(KINDS), help="one kind of comparison (default: all)")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = figures_file.earlier(arguments.out, "comparisons") or []
    done = {(one["kind"], one["seed"]) for one in found}
    for name in [arguments.only] if arguments.only else KINDS:
        for seed in range(KINDS[name].of):
            if (name, seed) not in done:
                found.append(run_comparison(name, seed, arguments.rounds))
                values = {"rounds": arguments.rounds, "comparisons": found}
                heading = "Can the comparison be believed?"
                figures_file.write(arguments.out, values, heading, rows_of(found))
    figures_file.show(rows_of(found))
    return int(any(row[-1] == "missed" for row in rows_of(found)))


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
