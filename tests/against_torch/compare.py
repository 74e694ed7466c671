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

COMPARED = ("keys", "modules", "trained", "batches", "calls", "schedule", "training", "losses",
            "parameters", "buffers", "gradients", "state", "optimizer_state", "extra", "rates",
            "groups")  # fmt: skip


def reasons(case: Case) -> list[str]:
    """Return why the product may round differently from plain PyTorch in this case.

    An empty list means that the results must be equal to the bit.
    """
    world = LAUNCHES[case.launch].world
    model = MODELS[case.model].rounds
    holds = {
        model: case.config in ("eager", *COMPILED) and model,
        "the optimizer steps in one pass over memory": (
            (case.call == "parts" and case.config != "plain") or case.call.endswith("one_pass")
        ),
        "the mean of the first backward pass is added to what is averaged in the second": (
            case.loop == "two_backwards" and world > 1
        ),
        "each backward pass is averaged by itself": (
            case.loop in ("two_calls", "same_graph_twice", "output_by_output")
        ),
        "the ranks' gradients are added in another order": world > 2,
        "Inductor fuses operations and orders sums anew": case.config == "inductor",
    }
    return [reason for reason, does in holds.items() if does]


def differences(case: Case, ours: dict[str, Any], plain: dict[str, Any], exact: bool) -> list[str]:
    """Return a line for each field in which the product's record of a rank is not the oracle's.

    With `exact`, numbers have to be equal to the bit.
    """
    found = [f"objection: {text}" for text in ours["objections"]]
    if LAUNCHES[case.launch].world == 1:
        for name in ("samples", "length"):
            if ours[name] != plain[name]:
                found.append(f"{name}: {ours[name]} instead of {plain[name]}")
        if not torch.equal(ours["random"], plain["random"]):
            found.append("random: the global generator is in another state")
    for name in COMPARED:
        found += _apart(case, name, ours[name], plain[name], exact)
    return found


def _apart(case: Case, where: str, ours: Any, plain: Any, exact: bool) -> list[str]:
    """Return a line for each number, tensor or container that differs."""
    kinds = {type(ours), type(plain)}
    if isinstance(ours, dict) and isinstance(plain, dict):
        if set(ours) != set(plain):
            return [f"{where}: {sorted(map(str, ours))} instead of {sorted(map(str, plain))}"]
        pairs = [(f"{where}.{k}", ours[k], plain[k]) for k in plain]
        return [line for pair in pairs for line in _apart(case, *pair, exact)]
    if kinds <= {list, tuple}:
        pairs = [(f"{where}[{n}]", *pair) for n, pair in enumerate(zip(ours, plain, strict=False))]
        lines = [line for pair in pairs for line in _apart(case, *pair, exact)][:3]
        if len(ours) != len(plain):
            lines.append(f"{where}: {len(ours)} instead of {len(plain)}")
        return lines
    if kinds == {float}:
        ours, plain = (torch.tensor(value, dtype=torch.float64) for value in (ours, plain))
    if isinstance(ours, torch.Tensor) and isinstance(plain, torch.Tensor):
        return _tensors_apart(case, where, ours, plain, exact)
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
    if not exact and (where.startswith(("losses", "extra")) or case.loop in MIXING):
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
