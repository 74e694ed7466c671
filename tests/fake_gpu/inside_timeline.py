"""A rank of a run on several fake devices that records its timeline, as test_device.py starts it.

Rank 0 writes the timeline to the file that it is given, and prints the losses of the run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tiny_task
from fake_gpu import plugin, work

from gallery_lib.compiler import backend
from gallery_lib.compiler.calls import set_compiled
from gallery_lib.measure.replay import Recorder, write_timeline
from gallery_lib.train.loop import train

FIRST, STEPS = 2, 3


def eager(model, options, device, channels_last):
    """Leave the model as it is: what is recorded is when gradients are ready."""
    set_compiled(model, model._call_impl)
    return "nothing: a test on the fake device"


def main(file: Path, run_dir: Path) -> int:
    """Train and record; return 1 if work on the device failed."""
    plugin.install()
    backend._compile = eager
    os.environ["GALLERY_COMPILER_OPT"] = "1"
    recorder = Recorder(FIRST)
    config = tiny_task.config(
        max_steps=FIRST + STEPS, compiler_opt=True, evaluate=False, run_dir=str(run_dir)
    )
    results = train(config, recorder)
    if os.environ["RANK"] == "0":
        write_timeline(file, recorder.timeline)
        print(f"world size {results.world_size}, {results.environment['device']}")
    return len(work.failures())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
