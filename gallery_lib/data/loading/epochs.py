"""Count the epochs of data sets and samplers until the caller calls `set_epoch`.

A stand-in replaces `set_epoch` on the object, not on its class, and notices who calls it. From the
caller's first call on, the epochs of the object are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Noticed:
    """Stand-in for `owner.set_epoch` that remembers whether the caller has called it."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.by_caller, self.telling = owner, False, False
        # A method of the owner's class is not kept: pickled with the owner, it would lead back to
        # this object.
        of_class = hasattr(type(owner), "set_epoch") and "set_epoch" not in getattr(
            owner, "__dict__", {}
        )
        self.original = None if of_class else owner.set_epoch
        epoch = getattr(owner, "epoch", 0)
        # an epoch that was set before belongs to a resumed run
        self.start = epoch if isinstance(epoch, int) else 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, and remember the call unless this module makes it."""
        self.by_caller = self.by_caller or not self.telling
        if self.original is None:
            return type(self.owner).set_epoch(self.owner, *args, **kwargs)
        return self.original(*args, **kwargs)


def _noticed(owner: Any) -> Noticed:
    """Return the stand-in on `owner`; an owner that takes no attributes is not watched."""
    present = getattr(owner, "__dict__", {}).get("set_epoch")
    if isinstance(present, Noticed):
        return present
    noticed = Noticed(owner)
    if hasattr(owner, "__dict__"):
        vars(owner)["set_epoch"] = noticed
    return noticed


class Epochs:
    """Epochs of groups of objects; the outermost object of a group passes its epochs on."""

    def __init__(self, *groups: Sequence[Any]) -> None:
        owners = [
            [owner for owner in group if callable(getattr(owner, "set_epoch", None))]
            for group in groups
        ]
        self._groups = [[_noticed(owner) for owner in group] for group in owners if group]
        self._passes = 0
        self._set: int | None = None

    def begin_pass(self) -> None:
        """Tell the next epoch to every group whose epochs are not the caller's."""
        for group in self._groups:
            if not any(noticed.by_caller for noticed in group):
                start = group[0].start if self._set is None else self._set
                _tell(group, start + self._passes)
        self._passes += 1

    def set(self, epoch: int) -> None:
        """Make `epoch` the epoch of the next pass; later passes count on from there."""
        self._set, self._passes = epoch, 0
        for group in self._groups:
            for noticed in group:
                noticed.by_caller = False
            _tell(group, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of passes begun, and the epoch that the caller has set, if any."""
        return {"passes": self._passes, "set": self._set}

    def load_state_dict(self, state: dict[str, Any], *, under_way: bool) -> None:
        """Go on after those passes; one that is `under_way` is begun again."""
        self._passes, self._set = state["passes"] - under_way, state["set"]


def _tell(group: list[Noticed], epoch: int) -> None:
    for noticed in group:
        noticed.telling = True
    try:
        group[0](epoch)
    finally:
        for noticed in group:
            noticed.telling = False
