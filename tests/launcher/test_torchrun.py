"""torchrun as the launcher starts it, and what a training process does before it begins."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

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


IN_TORCHRUN = """
import logging, sys
from torch.distributed import run
from gallery_lib.launcher import torchrun
logger = logging.getLogger("torch.distributed.elastic.agent")
run.main = lambda arguments: logger.exception("failed")
try:
    raise ValueError("planted")
except ValueError:
    torchrun.main(["--nnodes=1"])
print([name for name in sys.modules if name == "torch._dynamo"])
"""


def test_torchrun_says_that_a_rank_has_failed_without_importing_the_compiler() -> None:
    words = [sys.executable, "-c", IN_TORCHRUN]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
    assert "failed" in said.stderr and "ValueError: planted" in said.stderr


IN_A_WORKER = """
import gc, sys
from gallery_lib.launcher import worker
assert "torch" not in sys.modules
worker.preload()
print("torch._dynamo" in sys.modules, "torch._inductor.compile_fx" in sys.modules, \
gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler_opt", [False, True])
def test_preloading_imports_the_compiler_where_the_run_uses_it(compiler_opt: bool) -> None:
    environment = {**os.environ, "GALLERY_COMPILER_OPT": str(int(compiler_opt))}
    shown = subprocess.run(
        [sys.executable, "-c", IN_A_WORKER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert shown.stdout.split() == ["True", str(compiler_opt), "True", "True"]
