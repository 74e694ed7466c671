"""Training that Trainer, Lightning, Fabric and Accelerate drive, plain and with ours.

On one process and on two, started by torchrun: the losses are the library's own within rounding,
the keys of checkpoints too, and the optimizer has its fast step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.several_cores]

NAMES = ("trainer", "lightning", "fabric", "accelerate", "plug", "timm", "timm_before")


@pytest.fixture(scope="module", params=[1, 2])
def trained(request: pytest.FixtureRequest, checkout: Path) -> dict[str, Any]:
    """Return what each library's two trainings left, with so many processes."""
    starter = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={request.param}"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(starter if request.param > 1 else []), "-m"]
    done = subprocess.run(
        [*command, "tests.plug.libraries", *NAMES],
        **{"cwd": checkout, "env": environment, "capture_output": True, "text": True},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_names_are_the_librarys_own(trained: dict[str, Any], name: str) -> None:
    plain, ours = trained[name]["plain"], trained[name]["ours"]
    assert len(plain["losses"]) == 6
    assert ours["losses"] == pytest.approx(plain["losses"], rel=2e-5)
    assert plain["optimizer"] == "torch.optim.adamw.AdamW"
    if name != "accelerate":  # on two processes it leaves torch.compile's prefix in names
        assert ours["keys"] == plain["keys"]
    if name in ("accelerate", "timm", "timm_before"):  # the backend alone
        assert ours["optimizer"] == plain["optimizer"]
    else:
        assert ours["optimizer"] == "gallery_lib.optim.fused_cpu.AdamW"
    if name == "plug":
        assert ours["after off"] == "torch.optim.adamw"
