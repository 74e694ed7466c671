"""What the import `gallery_lib.comm.auto` reads and changes."""

from __future__ import annotations

import importlib

import pytest
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel as DDP


def test_options_come_from_the_environment_and_the_import_can_be_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auto = importlib.import_module("gallery_lib.comm.auto")
    auto.disable()
    plain = DDP.__init__
    for name, value in {"TUNE": "0", "STREAMS": "2", "BUCKET_MB": "2.5", "WIRE": "bf16"}.items():
        monkeypatch.setenv(f"GALLERY_COMM_{name}", value)
    read = importlib.reload(auto).options
    assert (read.tune, read.streams, read.bucket_mb, read.wire) == (False, 2, 2.5, "bf16")
    for change, same in ((auto.disable, True), (auto.enable, False), (auto.disable, True)):
        change()
        assert (DDP.__init__ is plain) is same
    for name, value, message in (
        ("STREAMS", "two", "streams='two' must be a whole number"),
        ("TUNE", "maybe", "tune='maybe' must be true or false"),
        ("STREAM", "2", "unknown parameter `stream`"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"GALLERY_COMM_{name}", value)
            with pytest.raises(ValueError, match=f"variables GALLERY_COMM_…: {message}"):
                importlib.reload(auto)


@pytest.mark.slow
def test_the_import_accelerates_what_it_can_and_can_be_undone(two: Ranks) -> None:
    for found in two.call("ways.automatic", {"streams": 2}):
        assert found["accelerated"] == [True, False, True] and found["subclass"] == "mine"
        assert "not in the default process group" in found["own group"]
        assert "delay_all_reduce_named_params" in found["delayed"]
