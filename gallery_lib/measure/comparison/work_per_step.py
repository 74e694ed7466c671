"""Work of a training step: floating-point operations, and bytes that its operators read and write.

Operations are those of matrix products, convolutions and attention, forward and backward, counted
by torch's own counter. Bytes are counted operator by operator as eager PyTorch runs them: every
input read once, every output written once, caches left out of account.

A compiled model that fuses operators moves less. So these bytes over its time may exceed the rate
at which the machine can copy. That rate says how fast an unfused run would have to move memory to
take the same time.
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.train.session import Session

MOVES_NOTHING = (
    "empty",
    "new_empty",
    "_unsafe_view",
    "_reshape_alias",
    "alias",
    "detach",
    "lift_fresh",
    "set_",
)
"""Beginnings of the names of operators that move no data, beside views."""


class Traffic(TorchDispatchMode):
    """Dispatch mode that counts in `bytes` what the operators inside it read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count its operands."""
        out = operator(*args, **(kwargs or {}))
        if not operator.is_view and not operator.overloadpacket.__name__.startswith(MOVES_NOTHING):
            self.bytes += sum(
                t.numel() * t.element_size() for t in tensors_in((args, kwargs or {}, out))
            )
        return out


def step_traffic_bytes(session: Session, batch: Any) -> int:
    """Return the bytes of one more step, which trains the model.

    Only for a model that is not compiled.
    """
    with Traffic() as traffic:
        session.optimizer.zero_grad(set_to_none=True)
        session.backward(session.forward(batch))
        session.optimizer.step()
    return traffic.bytes
