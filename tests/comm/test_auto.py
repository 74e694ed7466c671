"""What the import `gallery_lib.comm.auto` reads and changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ranks import Ranks

from gallery_lib.system.processes import search_path

pytestmark = pytest.mark.slow
CODE = """
import importlib, os
from torch.nn.parallel import DistributedDataParallel as DDP
plain = DDP.__init__
import gallery_lib.comm.auto as auto
o = auto.options
print([o.tune, o.streams, o.bucket_mb, o.wire])
accelerated = DDP.__init__ is not plain
auto.disable()
print(accelerated, DDP.__init__ is plain, [auto.enable(), DDP.__init__ is not plain][1])
auto.disable()
for name, value in (("STREAMS", "two"), ("TUNE", "maybe"), ("STREAM", "2")):
    before = dict(os.environ)
    os.environ["GALLERY_COMM_" + name] = value
    try:
        importlib.reload(auto)
    except ValueError as error:
        print(error)
    os.environ.clear()
    os.environ.update(before)
"""


def test_options_come_from_the_environment_and_the_import_can_be_undone() -> None:
    variables = {"TUNE": "0", "STREAMS": "2", "BUCKET_MB": "2.5", "WIRE": "bf16"}
    environment = {f"GALLERY_COMM_{name}": value for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": search_path(), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    read, undone, number, word, unknown = done.stdout.splitlines()
    assert (read, undone) == ("[False, 2, 2.5, 'bf16']", "True True True"), done.stderr
    assert "variables GALLERY_COMM_…: streams='two' must be a whole number" in number
    assert "variables GALLERY_COMM_…: tune='maybe' must be true or false" in word
    assert "variables GALLERY_COMM_…: unknown parameter `stream`" in unknown


def test_the_import_accelerates_what_it_can_and_can_be_undone(two: Ranks) -> None:
    for found in two.call("ways.automatic", {"streams": 2}):
        assert found["accelerated"] == [True, False, True] and found["subclass"] == "mine"
        assert "not in the default process group" in found["own group"]
        assert "delay_all_reduce_named_params" in found["delayed"]
