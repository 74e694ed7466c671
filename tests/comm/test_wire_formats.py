"""What a wire format keeps of a gradient, without processes."""

from __future__ import annotations

from typing import Any

import torch
from refusal import refused

from gallery_lib.comm.wire_formats import Int8


def test_error_feedback_of_another_version_is_refused_and_what_was_kept_stays() -> None:
    group: Any = None  # nothing is sent
    exchange = Int8(group, error_feedback=True)
    exchange.load_state_dict({"residuals": {(0, 4, 0): torch.ones(4)}})
    for other in ({(0, 4): torch.ones(4)}, {(0, 4, 0): (torch.ones(4), torch.ones(2))}):
        with refused("state", "another version"):
            exchange.load_state_dict({"residuals": other})
    assert torch.equal(exchange.state_dict()["residuals"][0, 4, 0], torch.ones(4))
