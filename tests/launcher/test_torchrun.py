"""torchrun as the launcher starts it."""

from __future__ import annotations

import multiprocessing
import signal

from gallery_lib.launcher.torchrun import _Finished


def test_a_rank_that_is_killed_while_it_waits_for_the_others_does_not_block_torchrun() -> None:
    finished = _Finished()
    ranks = [multiprocessing.get_context("fork").Process(target=finished.wait) for _ in range(2)]
    for rank in ranks:
        rank.start()
    ranks[0].kill()
    ranks[0].join(10)
    finished.set()
    ranks[1].join(10)
    assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL, 0]
