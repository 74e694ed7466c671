"""Shared memory of a host's processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from gallery_lib.comm import topology
from gallery_lib.comm.shared_memory import SharedSlots


def shared(failing_rank: int | None) -> dict[str, Any]:
    """What two slots, the second of which has to grow, hold after each process of the host wrote its rank, and how many names the
    files had as they were opened; or the message where one process cannot open them."""
    names = []
    open_file = torch.from_file

    def opened(path: str, **options: Any) -> torch.Tensor:
        names.append(Path(path).stat().st_nlink)
        if dist.get_rank() == failing_rank:
            raise RuntimeError("made to fail")
        return open_file(path, **options)

    local, _ = topology.groups(topology.find())
    assert local is not None
    slots, seen = SharedSlots(local), []
    try:
        with mock.patch.object(torch, "from_file", opened):
            for size in (3, 300):
                rows = slots.of(size, torch.float32)
                rows[dist.get_rank(local)].fill_(dist.get_rank())
                slots.meet()
                seen.append(rows[: dist.get_world_size(local)].mean(1).tolist())
                slots.meet()
    except Exception as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"seen": seen, "names": names}
