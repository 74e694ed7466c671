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
    """Return what two shared slots hold, and the link counts of their files when opened.

    Each process of the host writes its rank into both slots, the second of which has to grow. Where
    one process cannot open the files, return the message instead.
    """
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
