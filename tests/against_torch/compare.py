"""Differences between the records of two sides, and how far apart numbers may be, and why.

Numbers are equal to the bit where the arithmetic is the same. Where it is not, `reasons` says why,
and a number may be apart by BOUND of its dtype. The unit is the largest magnitude of the tensor (at
least 1).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from . import loaders
from .case import Case
from .launches import LAUNCHES
from .models import MODELS
from .product import COMPILED

BOUND = {torch.float64: 1e-10, torch.complex64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 3e-2}
AUTOCAST = 2e-2
"""Bound where operations round to bfloat16."""
DECIDING_AUTOCAST = 0.6
"""Bound where Inductor also rounds at other places, so that max pooling may choose another value.

Eager PyTorch's own gradients were up to 0.56 from float64's in 200 draws of the model `depthwise`.
"""

MIXING = ("gan", "clip")
"""Loops in which numbers of another precision enter every gradient.

In `gan` a float32 network makes them. In `clip` it is the norm of all gradients.
"""

VALUES = ("losses", "parameters", "buffers", "gradients", "state", "optimizer_state", "extra",
          "rates", "groups")  # fmt: skip
WORDS = ("keys", "modules", "trained", "batches", "calls", "schedule", "training")


def reasons(case: Case) -> list[str]:
    """Return why the product may round differently from plain PyTorch in this case.

    An empty list means that the results must be equal to the bit.
    """
    found = []
    if case.config in ("eager", *COMPILED) and MODELS[case.model].rounds:
        found.append(MODELS[case.model].rounds)
    ours = case.call == "parts" and case.config != "plain"
    if ours or case.call.endswith("one_pass"):
        found.append("the optimizer steps in one pass over memory")
    if case.loop == "two_backwards" and LAUNCHES[case.launch].world > 1:
        found.append(
            "the mean of the first backward pass is added to what is averaged in the second"
        )
    if case.loop in ("two_calls", "same_graph_twice", "output_by_output"):
        found.append("each backward pass is averaged by itself")
    if LAUNCHES[case.launch].world > 2:
        found.append("the ranks' gradients are added in another order")
    if case.config == "inductor":
        found.append("Inductor fuses operations and orders sums anew")
    return found


def differences(case: Case, ours: dict[str, Any], plain: dict[str, Any], exact: bool) -> list[str]:
    """Return a line for each field in which the product's record of a rank is not the oracle's.

    With `exact`, numbers have to be equal to the bit.
    """
    found = [f"objection: {text}" for text in ours["objections"]]
    if LAUNCHES[case.launch].world == 1:
        if ours["samples"] != plain["samples"]:
            found.append(f"samples: {ours['samples']} instead of {plain['samples']}")
        if ours["length"] != plain["length"]:
            found.append(f"length: {ours['length']} instead of {plain['length']}")
        if not torch.equal(ours["random"], plain["random"]):
            found.append("random: the global generator is in another state")
    for name in WORDS:
        if ours[name] != plain[name]:
            found.append(f"{name}: {_first_difference(ours[name], plain[name])}")
    for name in VALUES:
        found += _apart(case, name, ours[name], plain[name], exact)
    return found


def _first_difference(ours: Any, plain: Any) -> str:
    if isinstance(ours, dict) and isinstance(plain, dict):
        keys = [k for k in {**ours, **plain} if ours.get(k) != plain.get(k)]
        return ", ".join(f"{k!r} is {ours.get(k)!r} instead of {plain.get(k)!r}" for k in keys[:3])
    if isinstance(ours, list) and isinstance(plain, list):
        for number, (a, b) in enumerate(zip(ours, plain, strict=False)):
            if a != b:
                return f"number {number} is {a!r} instead of {b!r}"
        return f"{len(ours)} instead of {len(plain)}"
    return f"{ours!r} instead of {plain!r}"


def _apart(case: Case, where: str, ours: Any, plain: Any, exact: bool) -> list[str]:
    """Return a line for each number, tensor or container that differs."""
    if isinstance(ours, dict) and isinstance(plain, dict):
        if set(ours) != set(plain):
            return [f"{where}: {sorted(map(str, ours))} instead of {sorted(map(str, plain))}"]
        pairs = [(f"{where}.{k}", ours[k], plain[k]) for k in plain]
        return [line for pair in pairs for line in _apart(case, *pair, exact)]
    if isinstance(ours, (list, tuple)) and isinstance(plain, (list, tuple)):
        if len(ours) != len(plain):
            return [f"{where}: {len(ours)} instead of {len(plain)}"]
        pairs = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(ours, plain, strict=True))]
        return [line for pair in pairs for line in _apart(case, *pair, exact)][:3]
    if isinstance(ours, torch.Tensor) and isinstance(plain, torch.Tensor):
        return _tensors_apart(case, where, ours, plain, exact)
    if isinstance(ours, float) and isinstance(plain, float):
        both = (torch.tensor(value, dtype=torch.float64) for value in (ours, plain))
        return _tensors_apart(case, where, *both, exact)
    return [] if ours == plain else [f"{where}: {ours!r} instead of {plain!r}"]


def _tensors_apart(
    case: Case, where: str, ours: torch.Tensor, plain: torch.Tensor, exact: bool
) -> list[str]:
    kinds = [(t.dtype, tuple(t.shape), t.layout) for t in (ours, plain)]
    if kinds[0] != kinds[1]:
        return [f"{where}: {kinds[0]} instead of {kinds[1]}"]
    if ours.is_sparse:
        ours, plain = ours.to_dense(), plain.to_dense()
    same = (ours == plain) | ((ours != ours) & (plain != plain))
    if bool(same.all()):
        return []
    wide = torch.complex128 if ours.is_complex() else torch.float64
    apart = (ours.to(wide) - plain.to(wide)).abs()
    apart = apart.masked_fill(same, 0.0).nan_to_num(nan=float("inf")).max().item()
    rounded = 0.0
    if case.loop == "autocast":
        decides = case.config == "inductor" and MODELS[case.model].decides
        rounded = DECIDING_AUTOCAST if decides else AUTOCAST
    bound = 0.0 if exact else max(BOUND.get(ours.dtype, 0.0), rounded)
    # A sum in float64 may have parts of another dtype.
    if not exact and (where.startswith("losses") or case.loop in MIXING):
        bound = max(bound, BOUND.get(MODELS[case.model].dtype, BOUND[torch.float32]))
    scale = max(1.0, plain.to(wide).abs().nan_to_num(0.0).max().item())
    if apart <= bound * scale:
        return []
    return [f"{where}: apart by {apart:.3g}, bound {bound * scale:.3g}"]


def union(case: Case, ranks: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the samples that all ranks together have seen, epoch by epoch."""
    kind = loaders.LOADERS[case.loader]
    world, found = len(ranks), []
    counts = [[len(epoch) for epoch in r["samples"].get("train", [])] for r in ranks]
    if any(c != counts[0] for c in counts):
        return [f"union: ranks took different numbers of batches: {counts}"]
    workers = max(1, case.workers)
    left_out = {"": 0, "items": world - 1, "batches": world * case.batch_size}
    allowed = left_out[kind.missing] * workers
    padding = (world - 1) * (case.batch_size if kind.missing == "batches" else workers)
    epochs = len(counts[0])
    for number in range(epochs if kind.union == "once" else 0):
        if not all(r["complete"]["train"][number] for r in ranks):
            continue
        seen = Counter(i for r in ranks for batch in r["samples"]["train"][number] for i in batch)
        right = loaders.expected(case)
        missing = [i for i in right if not seen[i]]
        surplus, all_seen = seen.total() - len(set(seen)), sorted(seen.elements())
        if len(missing) > allowed or set(seen) - set(right):
            found.append(f"union: epoch {number} lacks {missing}, has {all_seen}")
        if surplus > padding:
            found.append(f"union: epoch {number} has {surplus} samples too many: {all_seen}")
    # Fewer things come in the same order twice by chance: three batches in one case of six.
    if kind.shuffles and epochs > 1 and loaders.shuffled(case) >= 9:
        orders = [[b for r in ranks for b in r["samples"]["train"][n]] for n in range(2)]
        whole = all(r["complete"]["train"][n] for r in ranks for n in range(2))
        if whole and orders[0] == orders[1]:
            found.append("union: the second epoch has the first one's order")
    return found
