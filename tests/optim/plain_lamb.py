"""LAMB as its paper writes it, one tensor after another, as a reference for ours.

It is also an optimizer that knows nothing of loss scaling.
"""

from __future__ import annotations

import torch


class PlainLamb(torch.optim.Optimizer):
    """LAMB with bias correction and φ(x) = x.

    You et al., "Large Batch Optimization for Deep Learning", 2020, algorithm 2.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(step=0, m=torch.zeros_like(weight), v=torch.zeros_like(weight))
                state["step"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * weight.grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * weight.grad**2
                m = state["m"] / (1 - beta1 ** state["step"])
                v = state["v"] / (1 - beta2 ** state["step"])
                update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * weight
                norms = weight.norm(), update.norm()
                ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
                weight -= group["lr"] * ratio * update
