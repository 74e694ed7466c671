"""Adam and AdamW that keep their moments in bf16, in half the memory.

A step moves 20 bytes a parameter instead of 28 and computes more; which is faster is the machine's.
Arithmetic is fp32. What is kept of the moments is rounded up or down by chance, so that the mean is
the value (stochastic rounding). To the nearest, a second moment would stand still: with a beta2 of
0.999 most of its changes are less than half of bf16's step.

The chance is a hash of `moments_seed` (an option of the groups, so a part of the state dict), step,
the parameter's place in the optimizer and the element's in memory: no thread or processor changes
it, and a resumed run goes on with it. State dicts have torch's keys. torch's classes read them as
fp32, without loss; moments in fp32 are rounded to the nearest when they are loaded, which a line
says. torch's own step takes no such moments: what the C++ does not take is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import cpu_optimizers
from gallery_lib.optim import fused_cpu
from gallery_lib.system.processes import tell

PARAMETER = "compute.moments"
SEED = "moments_seed"
_ROUNDED = "; moments in fp32 were rounded to it, once"


class Bf16Moments(fused_cpu.OnePass):
    """Base of the classes: what differs from one pass with states in fp32."""

    _state_dtype = torch.bfloat16

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin(torch.initial_seed())

    def begin(self, seed: int) -> str:
        """Round the moments that are there, and set the seed; return what to say of the former."""
        self.defaults.setdefault(SEED, seed)
        for group in self.param_groups:
            group.setdefault(SEED, self.defaults[SEED])
        return _ROUNDED if self.convert(torch.bfloat16) else ""

    def convert(self, dtype: torch.dtype) -> bool:
        """Round all moments to the nearest of this dtype; return whether that changed any."""
        changed = False
        for state in self.state.values():
            for name in self._states:
                if isinstance(before := state.get(name), Tensor):
                    state[name] = before.to(dtype)
                    changed |= not state[name].to(before.dtype).equal(before)
        return changed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of these classes or of torch's; say so where moments are rounded."""
        super().load_state_dict(state_dict)  # which makes the moments fp32
        if (said := self.begin(self.defaults[SEED])) and os.environ.get("RANK", "0") == "0":
            tell(f"config.{PARAMETER}=bf16{said}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        function, arguments, state = super().__reduce_ex__(protocol)
        wide = {
            p: {k: v.float() if k in self._states else v for k, v in own.items()}
            for p, own in self.state.items()
        }  # torch's class takes fp32 alone
        return function, arguments, {**state, "state": defaultdict(dict, wide)}

    def _leave(self, step: Any, groups: Sequence[dict[str, Any]]) -> None:
        raise InputError(
            f"config.{PARAMETER}=bf16: a step of {type(self).__name__} takes gapless weights and "
            "gradients in fp32 on the CPU that share no memory, and numbers as options; not "
            "amsgrad, no gradients of a scaler, no torch.compile. Leave the option out.",
            parameter=PARAMETER,
        )

    def _rounded(self, weights: list[Tensor], *columns: Any, **options: Any) -> None:
        every = (p for one in self.param_groups for p in one["params"])
        place = {id(p): number for number, p in enumerate(every)}
        options |= {"seed": self.param_groups[0][SEED], "places": [place[id(p)] for p in weights]}
        cpu_optimizers.rounded_adam_(weights, *columns, **options)

    _rule: Any = _rounded


class Adam(Bf16Moments, fused_cpu.Adam):  # type: ignore[misc]
    """Adam (see `fused_cpu.Adam`) with moments in bf16."""


class AdamW(Bf16Moments, fused_cpu.AdamW):  # type: ignore[misc]
    """AdamW (see `fused_cpu.AdamW`) with moments in bf16."""
