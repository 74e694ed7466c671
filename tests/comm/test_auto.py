"""What the import `gallery_lib.comm.auto` reads and changes, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ranks import Ranks

from gallery_lib.system.processes import search_path


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2, 1) as running:
        yield running


def _python(code: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": search_path(), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


@pytest.mark.slow
def test_options_come_from_the_environment_as_their_own_types() -> None:
    code = (
        "import gallery_lib.comm.auto as a; o = a.options; "
        "print([o.tune, o.streams, o.bucket_mb, o.wire])"
    )
    variables = {
        "GALLERY_COMM_TUNE": "0",
        "GALLERY_COMM_STREAMS": "2",
        "GALLERY_COMM_BUCKET_MB": "2.5",
        "GALLERY_COMM_WIRE": "bf16",
    }
    assert _python(code, **variables).startswith("[False, 2, 2.5, 'bf16']")


@pytest.mark.slow
def test_a_variable_that_is_no_option_or_no_value_of_it_is_named() -> None:
    code = """
import os
for name, value in (("STREAMS", "two"), ("TUNE", "maybe"), ("STREAM", "2")):
    os.environ["GALLERY_COMM_" + name] = value
    try:
        import gallery_lib.comm.auto
    except ValueError as error:
        print(error)
    del os.environ["GALLERY_COMM_" + name]
"""
    said = _python(code)
    assert "environment variable GALLERY_COMM_STREAMS: streams='two' must be a whole number" in said
    assert "environment variable GALLERY_COMM_TUNE: tune='maybe' must be true or false" in said
    assert "environment variable GALLERY_COMM_STREAM: there is no such option" in said


@pytest.mark.slow
def test_importing_twice_and_disabling_leave_torchs_own_constructor() -> None:
    code = """
import importlib, sys
from torch.nn.parallel import DistributedDataParallel as DDP
plain = DDP.__init__
import gallery_lib.comm.auto as auto
importlib.reload(auto)
del sys.modules["gallery_lib.comm.auto"]
import gallery_lib.comm.auto as again
accelerated = DDP.__init__ is not plain
again.disable()
print(accelerated, DDP.__init__ is plain, [again.enable(), DDP.__init__ is not plain][1])
"""
    assert _python(code).startswith("True True True")


@pytest.mark.slow
def test_a_choice_that_was_kept_changes_nothing_for_the_users_hooks(two: Ranks) -> None:
    for first, second in two.call("choices.automatic_twice"):
        assert first["chosen"] and second["chosen"] and first["calls"] == second["calls"] > 100


@pytest.mark.slow
def test_subclasses_and_models_that_ddp_averages_otherwise(two: Ranks) -> None:
    for found in two.call("choices.automatic_otherwise"):
        assert found["subclass"] == [True, "mine"]
        assert "delay_all_reduce_named_params" in found["delayed"]


@pytest.mark.slow
def test_a_damaged_choice_is_set_aside_on_every_rank(two: Ranks) -> None:
    assert two.call("choices.damaged") == [[True, True, True]] * 2
