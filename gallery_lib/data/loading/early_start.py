"""DataLoader whose workers can start before its batches are needed: before the model is built.

Forking a worker makes the memory of this process copy-on-write. From then on, the first write to a
page that this process had touched before copies the page. If the fork follows the building of a
half-gigabyte model, the first steps copy its weights this way, small page by small page. With an
early start, the workers also load batches while the model is built.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from gallery_lib.data.loading.progress import states_of


class EarlyWorkers(DataLoader[Any]):
    """DataLoader with a `begin` that starts the workers of its first pass early.

    The first pass has the same batches as without `begin`, if nobody else draws from `generator`
    meanwhile.
    """

    _early: Any = None
    early_start: dict[str, Any] | None = None
    """Random states at the beginning of a pass whose workers have started early."""

    def begin(self) -> None:
        """Start the workers of the first pass."""
        if self._early is None:
            self.early_start = states_of(self)
            self._early = super().__iter__()

    def __iter__(self) -> Any:
        early, self._early, self.early_start = self._early, None, None
        return super().__iter__() if early is None else early
