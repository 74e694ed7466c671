"""Batches for which the compiler made graphs: a resumed run has it make the same ones again.

The compiler makes a graph for the first shape that it sees, and one for any shape when a second
comes. So the graph of a batch, and with it the last bit of a sum, depends on the batches before. A
checkpoint holds the positions in the data at which graphs were made. A resumed run takes these
batches through the model once more, in that order, before it goes on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gallery_lib.comm import process_group

if TYPE_CHECKING:
    from gallery_lib.train.session import Session

STATE = "compiled_graphs"
"""Name of the positions in a rank's part of a checkpoint."""


def _graphs() -> int:
    """Return the number of graphs that Dynamo has made in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


class CompiledGraphs:
    """Positions in the data of a run at which the compiler made graphs, on this rank."""

    def __init__(self, session: Session) -> None:
        self._session, self._made = session, _graphs()
        self.positions: list[dict[str, Any]] = []

    def step_done(self) -> None:
        """Note the position of the batch of this step, if the compiler made a graph for it."""
        made = _graphs()
        if made > self._made and self._session.config.compiler_opt:
            position = self._session.loader.state_dict()
            self.positions.append({**position, "taken": position["taken"] - 1})
        self._made = made

    def make_again(self, positions: list[dict[str, Any]]) -> int:
        """Run forward and backward passes on the batches at these positions; return how many.

        Ranks that have fewer of them repeat their last one, since gradients are averaged over all
        ranks. Weights, random states and the position in the data are to be loaded afterwards. A
        collective call.
        """
        session = self._session
        own = positions if session.config.compiler_opt else []
        passes = max(process_group.all_ranks(len(own)))
        batch: Any = None
        for number in range(passes):
            if number < len(own):
                session.loader.load_state_dict(own[number])
            if number < len(own) or batch is None:
                batch = next(iter(session.loader))
            session.backward(session.forward(batch))
            session.optimizer.zero_grad(set_to_none=True)
        self.positions, self._made = [*own], _graphs()
        return passes
