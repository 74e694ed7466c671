"""Both sides of a case, run one after the other, and the verdict whether they are the same."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import compare
from .case import Case
from .launches import LAUNCHES, Server
from .loaders import LOADERS
from .models import MODELS, UNUSED
from .product import COMPILED
from .rank import read

SAME, ROUNDED, AS_COMPILE = "same", "same but for rounding", "as torch.compile"
REFUSED, RAISES, FAILED = "refused", "plain raises, too", "FAILED"


@dataclass
class Verdict:
    """Outcome of a case: one of the words above, with the lines that say why."""

    case: Case
    outcome: str
    lines: list[str] = field(default_factory=list)

    def report(self, lines: int) -> str:
        """Return the option that runs the case again, and the first lines that say why."""
        return "\n  ".join([f"FAILED --case '{self.case.json()}'", *self.lines[:lines]])

    @property
    def signature(self) -> str:
        """Return a key that is the same for two failures if they are roughly one fault.

        It names the fields that differ, or the beginning of the message.
        """
        kinds = sorted({line.split(":")[0].split(".")[0].split("[")[0] for line in self.lines})
        spoken = kinds and kinds[0] in ("raised", "refused", "process")
        return f"{self.outcome} {kinds} {self.lines[0][:60] if spoken else ''}"


def refusal(case: Case) -> str:
    """Return why an InputError is a right answer to this case, or ''."""
    if LAUNCHES[case.launch].world == 1:
        return ""
    model = MODELS[case.model].refusal
    if case.model == "sparse" and case.comm in ("hierarchical", "streams", "tune", "together"):
        return "sparse gradients are averaged by DDP itself"
    if model and not (case.comm == "find_unused" and model == UNUSED):
        return model
    return LOADERS[case.loader].refusal


def seconds(case: Case) -> float:
    """Return how many seconds one side of a case may take."""
    return 240.0 if case.config == "inductor" or LAUNCHES[case.launch].command else 60.0


def run(case: Case, server: Server) -> Verdict:
    """Run the product, then plain PyTorch on the samples that the product saw, and compare."""
    with tempfile.TemporaryDirectory(prefix="against-torch-") as name:
        folder = Path(name)
        ours, trouble = _side(case, "product", server, folder)
        if trouble:
            return Verdict(case, FAILED, trouble)
        if refused := [r["message"] for r in ours if r["outcome"] == "refused"]:
            return _judged_refusal(case, refused)
        plain, trouble = _side(case, "plain", server, folder)
        if trouble:
            return Verdict(case, FAILED, trouble)
        if raised := [r for r in ours if r["outcome"] == "raised"]:
            if any(r["outcome"] == "raised" and "RanOutError" not in r["message"] for r in plain):
                return Verdict(case, RAISES, [raised[0]["message"].splitlines()[0]])
            if case.config in COMPILED:
                compiled, _ = _side(case, "compiled", server, folder)
                said = raised[0]["message"].replace("backend='gallery'", "backend='inductor'")
                if any(r["outcome"] == "raised" and r["message"] == said for r in compiled):
                    return Verdict(case, AS_COMPILE, [f"raised: {_one_line(raised[0])}"])
            return Verdict(case, FAILED, [f"raised: {_one_line(raised[0])}"])
        if raised := [r for r in plain if r["outcome"] == "raised"]:
            only = "process: plain PyTorch raises, the product does not"
            return Verdict(case, FAILED, [f"{only}: {_one_line(raised[0])}"])
        lines = _all_differences(case, ours, plain, exact=True)
        if not lines:
            return Verdict(case, SAME)
        if compare.reasons(case):
            lines = _all_differences(case, ours, plain, exact=False)
        if lines and case.config in COMPILED:
            compiled, trouble = _side(case, "compiled", server, folder)
            ran = not trouble and all(record["outcome"] == "ran" for record in compiled)
            if ran and not _all_differences(case, ours, compiled, exact=not compare.reasons(case)):
                return Verdict(case, AS_COMPILE, lines)
        return Verdict(case, FAILED if lines else ROUNDED, lines)


def _one_line(record: dict[str, Any]) -> str:
    # Leave out the folders of the machine that ran it.
    frames = re.findall(r'File "(?:[^"]*/)?([^"]*".*)', record["trace"])
    where = f'File "{frames[-1]}' if frames else ""
    return f"{' '.join(record['message'].split())[:400]} ({where})"


def _side(
    case: Case, side: str, server: Server, folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every rank's record, and what went wrong with the processes."""
    trouble = server.run(case.json(), side, case.launch, folder, seconds(case))
    ranks = range(LAUNCHES[case.launch].world)
    there = [read(folder, side, rank) for rank in ranks if (folder / f"{side}-{rank}.pt").exists()]
    known = [r for r in there if r["outcome"] != "ran"]
    if known:  # one rank says what is wrong; the others may have waited for it
        return sorted(
            known, key=lambda r: r["outcome"] != "refused" and "onnection" in r["message"]
        ), []
    if trouble or len(there) < len(ranks):
        logs = [
            line
            for path in sorted(folder.glob(f"{side}*.log"))
            for line in path.read_text().splitlines()[-3:]
        ]
        trouble = trouble or "a rank has left no record"
        return [], [f"process: {trouble}", *(f"log: {line[:200]}" for line in logs)]
    return there, []


def _judged_refusal(case: Case, messages: list[str]) -> Verdict:
    if long := [m for m in messages if "\n" in m.strip()]:
        return Verdict(case, FAILED, [f"refused: in more than one line: {long[0]!r}"])
    if not refusal(case):
        return Verdict(case, FAILED, [f"refused: what has to work: {messages[0]}"])
    return Verdict(case, REFUSED, [messages[0]])


def _all_differences(
    case: Case, ours: list[dict[str, Any]], other: list[dict[str, Any]], exact: bool
) -> list[str]:
    lines = compare.union(case, ours) if len(ours) > 1 else []
    for name, value in ours[0]["parameters"].items():
        if any(not torch.equal(record["parameters"][name], value) for record in ours[1:]):
            lines.append(f"ranks: {name} is not the same on all")
    for rank, (a, b) in enumerate(zip(ours, other, strict=True)):
        where = f" (rank {rank})" if len(ours) > 1 else ""
        lines += [line + where for line in compare.differences(case, a, b, exact)]
    return lines
