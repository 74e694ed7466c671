"""Groups of variants that are alive at the same time: as many as fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gallery_lib import stats
from gallery_lib.config import TrainConfig
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.measurement import Measurement
from gallery_lib.measure.comparison.pair import parity_of_all, speedup_of_all
from gallery_lib.measure.comparison.result import Parity
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate


def groups(names: Sequence[str], alive: int) -> Iterator[list[str]]:
    """Yield the variants but the baseline, in groups that leave room for it among `alive`."""
    for begin in range(0, len(names), alive - 1):
        yield list(names[begin : begin + alive - 1])


def alive_at_a_time(config: TrainConfig, wanted: int | None) -> int:
    """Return how many variants are to be alive; at least two.

    Raises:
        InputError: when not even two fit, or not as many as are wanted.
    """
    if wanted is not None:
        memory_estimate.check(config, 1, compared=wanted)
        return wanted
    if hardware.gpu_count():
        return 2
    memory_estimate.check(config, 1, compared=2)
    return int(memory_estimate.free_bytes() // memory_estimate.needed_bytes(config, compared=True))


@dataclass(frozen=True)
class Group:
    """Measurements of variants that took turns: once, or, started anew, more often.

    Of a variant that failed, nothing is kept.
    """

    starts: Sequence[Mapping[str, Measurement]]

    def __contains__(self, name: str) -> bool:
        return all(name in start for start in self.starts)

    def first(self, name: str) -> Measurement:
        """Return the variant, as it was started first."""
        return self.starts[0][name]

    def ratio(self, slower: str, faster: str, confidence: float) -> stats.Ratio:
        """Return how many times as fast `faster` is as `slower`."""
        return speedup_of_all([(start[slower], start[faster]) for start in self.starts], confidence)

    def parity(self, one: str, other: str, exact: Reference, steps: int) -> Parity:
        """Return the parity of two variants.

        Half precision is compared with fp32, not the other way round.
        """
        if [self.first(name).results.config["amp_level"] for name in (one, other)] == ["O1", "O0"]:
            one, other = other, one
        return parity_of_all([(start[one], start[other]) for start in self.starts], exact, steps)
