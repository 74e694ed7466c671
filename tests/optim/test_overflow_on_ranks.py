"""On two real processes all ranks skip the same steps, whichever rank overflows.

Scale, schedule and losses stay together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optim import overflow_on_ranks
from optim.overflow_on_ranks import RUNS, SCALING
from optim.training import OVERFLOW_AT, STEPS, losses, model, warmup
from torch.optim.lr_scheduler import LambdaLR

import gallery_lib
from gallery_lib.optim.updates import Updates

pytestmark = pytest.mark.slow
EACH = pytest.mark.parametrize(
    ("way", "pair"), RUNS, ids=[f"{pair.name} {way}" for way, pair in RUNS]
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(overflow_on_ranks.__file__)
    paths = [
        str(Path(gallery_lib.__file__).parent.parent),
        str(script.parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    command = [
        sys.executable,
        "-m",
        "gallery_lib.launcher.forked",
        "2",
        str(folder),
        overflow_on_ranks.__name__,
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.several_cores
@EACH
def test_ranks_skip_the_same_steps_and_train_as_one_process_does_with_torchs_classes(
    ranks, pair, way
):
    seen, other = (rank[f"{pair.name}, {way}"] for rank in ranks)
    assert seen == other
    assert [step for step, skipped in enumerate(seen["skipped"]) if skipped] == list(OVERFLOW_AT)
    net = model(torch.float64)
    optimizer = pair.theirs(net.parameters())
    scaler = torch.amp.GradScaler("cpu", **SCALING)
    updates = Updates(optimizer, scaler, LambdaLR(optimizer, warmup), 0.3)
    expected, scales, rates = [], [], []
    for step in range(STEPS):
        expected += losses(net, optimizer, range(step, step + 1), scaler, OVERFLOW_AT, updates.take)
        scales.append(scaler.get_scale())
        rates.append(optimizer.param_groups[0]["lr"])
    assert seen["losses"] == pytest.approx(expected, rel=1e-5)
    assert seen["scales"] == scales
    assert seen["rates"] == pytest.approx(rates, rel=1e-6)
