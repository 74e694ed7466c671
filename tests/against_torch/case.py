"""A case: the names and small numbers that decide one training, and nothing else.

A case passes through a command line as JSON unchanged, so that a failure can be run again.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """The settings of one training.

    Names are keys of the tables in models.py, loaders.py, loops.py, launches.py and product.py.
    """

    model: str = "mlp"
    loader: str = "in_order"
    batch: str = "list"
    loop: str = "simple"
    launch: str = "one"
    config: str = "plain"
    call: str = "older"  # how the product is called: product.CALLS
    optimizer: str = "sgd"
    scheduler: str = "none"
    comm: str = "default"
    order: int = 0  # which permutation of the parts accelerate() is given
    samples: int = 12
    batch_size: int = 3
    epochs: int = 2
    workers: int = 0
    seed: int = 0
    planted: str = ""  # a fault of planted.py that the product gets

    def json(self) -> str:
        """Return the case as JSON, without defaults."""
        plain = dataclasses.asdict(Case())
        return json.dumps({k: v for k, v in dataclasses.asdict(self).items() if v != plain[k]})

    @staticmethod
    def of(text: str) -> Case:
        """Return the case that `json` wrote. Raises TypeError for an unknown name."""
        return Case(**json.loads(text))
