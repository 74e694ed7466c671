"""Removal of dropout from a model, so that backends can be compared.

Different backends draw different random numbers, so what two of them compute would differ.
"""

from __future__ import annotations

from torch import nn


def without_dropout(model: nn.Module) -> None:
    """Set every dropout rate in `model` to zero.

    These are the rates of modules and the plain numbers that models hand to functions
    (`self.dropout = 0.1`).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
