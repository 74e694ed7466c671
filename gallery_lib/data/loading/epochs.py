"""Count the epochs of data sets and samplers, until the caller calls `set_epoch` himself.

A `set_epoch` is replaced, on the object and not on its class, by a stand-in that notices by whom it
is called. From the caller's first call on, the object's epochs are his.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Noticed:
    """Stands in for `owner.set_epoch`, and remembers whether anybody but us has called it."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.by_caller, self.telling = owner, False, False
        # Not a method of the owner's class: pickled with the owner, it would lead back to this object.
        of_class = hasattr(type(owner), "set_epoch") and "set_epoch" not in getattr(
            owner, "__dict__", {}
        )
        self.original = None if of_class else owner.set_epoch
        epoch = getattr(owner, "epoch", 0)
        self.start = (
            epoch if isinstance(epoch, int) else 0
        )  # set before we came: a run that goes on

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original."""
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
    """Tells epochs to groups of objects, the outermost of a group first; that one passes them on."""

    def __init__(self, *groups: Sequence[Any]) -> None:
        owners = [
            [owner for owner in group if callable(getattr(owner, "set_epoch", None))]
            for group in groups
        ]
        self._groups = [[_noticed(owner) for owner in group] for group in owners if group]
        self._passes = 0
        self._set: int | None = None

    def begin_pass(self) -> None:
        """Tell every group whose epochs are ours the next one."""
        for group in self._groups:
            if not any(noticed.by_caller for noticed in group):
                start = group[0].start if self._set is None else self._set
                _tell(group, start + self._passes)
        self._passes += 1

    def set(self, epoch: int) -> None:
        """The next pass is that of `epoch`, and the ones after it follow."""
        self._set, self._passes = epoch, 0
        for group in self._groups:
            for noticed in group:
                noticed.by_caller = False
            _tell(group, epoch)


def _tell(group: list[Noticed], epoch: int) -> None:
    for noticed in group:
        noticed.telling = True
    try:
        group[0](epoch)
    finally:
        for noticed in group:
            noticed.telling = False
