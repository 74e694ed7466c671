"""Learning-rate schedule that advances only with steps that were done, without a device sync.

The device decides whether a step is skipped for an overflow. It also counts the updates done, and
looks up the next step's learning rate in a table. The host adds to that table what each further
update would have. The host hears of a skipped step a few steps later. Then it goes back by one in
the wrapped schedule and in the groups' `lr`.

It is for schedules that are stepped once after every step of the optimizer. There is no table when
nothing is scaled, or with an optimizer that is none of `sync_free` (under this package's
GradScaler: torch's does not tell of skipped steps). Then the wrapped schedule is stepped, or not,
at once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gallery_lib.errors import InputError
from gallery_lib.optim.device_count import DeviceCount
from gallery_lib.optim.sync_free_step import SyncFree

AHEAD = 1024
"""Steps that the device may be behind the host; at more the host waits."""


class SkipAware:
    """Wrapper of a scheduler of torch that leaves out skipped steps.

    Its `state_dict()` is the wrapped one's, at the updates done: torch's own scheduler continues
    it.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.skip_aware_schedule import SkipAware
        >>> from gallery_lib.optim.sync_free import SGD
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = SGD(model.parameters(), lr=0.1)
        >>> schedule = SkipAware(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1))
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
        >>> schedule.step()
    """

    def __init__(self, schedule: LRScheduler) -> None:
        if isinstance(schedule, ReduceLROnPlateau):
            raise InputError(
                "ReduceLROnPlateau follows a metric and not the number of steps: "
                "step it as torch does, without SkipAware.",
                parameter="scheduler",
            )
        self.schedule = schedule
        self.optimizer = schedule.optimizer
        # Updates since `_start`, while the host does not know them all.
        self._done: DeviceCount | None = None
        self._at = 0  # where the wrapped schedule stands, in the same count
        # State and rates of the schedule at each update that it may have to stand at.
        self._marks: dict[int, tuple[dict[str, Any], list[float]]] = {}
        self._rates: Tensor | None = None  # [groups, AHEAD], by update
        self.optimizer.register_state_dict_pre_hook(lambda _: self.settle())
        self.optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle())

    def step(self) -> None:
        """Advance the schedule; call it after every step of the optimizer, skipped or not."""
        skipped: Tensor | None = getattr(self.optimizer, "step_was_skipped", None)
        if skipped is None or not isinstance(self.optimizer, SyncFree):
            self.settle()
            # The scaler has waited for such an optimizer, and said so.
            if skipped is None or not skipped.item():
                self.schedule.step()
            return
        behind = 0 if self._done is None else self._done.additions - self._done.known()[0]
        added = self._rates is not None and len(self._rates) != len(self.optimizer.param_groups)
        if behind >= AHEAD - 1 or added:
            self.settle()
        done = self._done or self._start(skipped.device)
        done.add(skipped == 0)
        additions, updates = done.known()
        self._move_to(updates + done.additions - additions)
        self._marks = {update: mark for update, mark in self._marks.items() if update >= updates}
        assert self._rates is not None
        self.optimizer.learning_rates = list(
            self._rates.index_select(1, done.value.view(1) % AHEAD)
        )

    def settle(self) -> None:
        """Bring the wrapped schedule and the groups' `lr` to the updates that were done.

        It waits for steps under way.
        """
        if self._done is not None:
            self._stand_at(self._done.wait())
            self._done = None
            self.optimizer.learning_rates = None  # type: ignore[attr-defined]

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates as far as the host knows.

        Without `settle()`, those of a skipped step may be the next ones.
        """
        return self.schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped schedule's state dict, at the updates done."""
        self.settle()
        return self.schedule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's.

        As in torch, the learning rates come with the optimizer's state.
        """
        self.settle()
        self.schedule.load_state_dict(state_dict)

    def _start(self, device: torch.device) -> DeviceCount:
        groups = self.optimizer.param_groups
        if any(isinstance(group["lr"], Tensor) for group in groups):
            raise InputError(
                "SkipAware takes learning rates that are numbers and brings them to the device "
                "itself; got a tensor as `lr`.",
                parameter="lr",
            )
        self._done, self._at, self._marks = DeviceCount(device), 0, {}
        self._rates = torch.zeros(len(groups), AHEAD, device=device)
        self._mark()
        return self._done

    def _mark(self) -> None:
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._marks[self._at] = (copy.deepcopy(self.schedule.state_dict()), rates)
        assert self._rates is not None
        for row, rate in zip(self._rates, rates, strict=True):
            row[self._at % AHEAD].fill_(rate)

    def _stand_at(self, update: int) -> None:
        if update != self._at:
            state, rates = self._marks[update]
            self.schedule.load_state_dict(copy.deepcopy(state))
            # The last group may be new.
            for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
            self._at = update

    def _move_to(self, update: int) -> None:
        while (furthest := max(self._marks)) < update:
            self._stand_at(furthest)
            before = self._what_else()
            self.schedule.step()
            if self._what_else() != before:
                kind = type(self.schedule).__name__
                raise InputError(
                    f"{kind} changes more than the learning rate, and that cannot follow here: "
                    "use cycle_momentum=False.",
                    parameter="cycle_momentum",
                )
            self._at += 1
            self._mark()
        self._stand_at(update)

    def _what_else(self) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in group.items() if name not in ("params", "lr")}
            for group in self.optimizer.param_groups
        ]
