"""Watch over compiled code that is compiled again: how often, why, and what it took.

Dynamo guards a graph by the shapes and values that it was made with, and compiles it again for
others, in silence. At torch's limit of graphs it falls back to eager code. One line says so, once
for each; `summary()` has the figures. Read in torch 2.11 and 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_USUAL = 1
"""Times that a function is compiled again in the usual course: once for shapes that change."""

_REMEDIES = (
    (r"size mismatch at index 0", "DataLoader(drop_last=True) keeps batches at one size"),
    (
        r"size mismatch|stride mismatch",
        "pad to a few lengths (pad_to_multiple_of), or torch._dynamo.mark_dynamic(tensor, dim)",
    ),
    (r"grad_mode|training", "call train() and eval() around whole passes over the data"),
    (r"requires_grad", "toggle requires_grad around whole passes, not in each step"),
    (r"GLOBAL_STATE|num_threads", "set threads, dtype and determinism before the first step"),
)
_ELSE = "a tensor in the place of a Python value that changes from step to step"


@dataclass
class _Watch:
    """Compilations of this process so far, beyond the first of each function."""

    say: Callable[[str], None]
    known: set[str]
    count: int = 0
    seconds: float = 0.0
    reason: str = ""
    at_limit: str = ""
    said: int = 0
    began: bool = False
    """Whether something may have been compiled since the last look."""

    def look(self, *_: Any) -> None:
        """Count what was compiled since the last look, and say what has not been said."""
        from torch._dynamo.utils import get_compilation_metrics

        self.began = False
        for one in get_compilation_metrics():
            if (key := _key(one)) in self.known or not one.recompile_reason:
                continue
            self.known.add(key)
            self.reason = _in_one_line(one.recompile_reason)
            if one.fail_type is None:
                self.count += 1
                self.seconds += one.entire_frame_compile_time_s or 0.0
            else:
                self.at_limit = self.reason
        if self.at_limit and self.said < 2:
            self.said = 2
            self.say(f"torch's limit of graphs is reached, and new inputs run eagerly. {self}")
        elif self.count > _USUAL and not self.said:
            self.said = 1
            self.say(str(self))

    def begin(self, *_: Any) -> None:
        """Note that a compilation begins, and count those before it."""
        self.look()
        self.began = True

    def __str__(self) -> str:
        """Return the line: how often, how long, why, and what helps."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"compiled again {times} ({self.seconds:.1f} s), at last since {self.reason}; "
            f"what helps: {_remedy(self.reason)}"
        )


_watch: _Watch | None = None


def watch(say: Callable[[str], None]) -> None:
    """Begin to count, and give `say` a line once when compiled code is compiled again and again."""
    global _watch
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.utils import get_compilation_metrics

    if _watch is None:
        _watch = _Watch(say, set(map(_key, get_compilation_metrics())))
        callback_handler.register_start_callback(_watch.begin)


def look() -> None:
    """Count what the call before this one has compiled, if anything."""
    from torch._dynamo.callback import callback_handler

    if _watch is None:
        return
    if _watch.begin not in callback_handler.start_callbacks:  # torch._dynamo.reset() removes it
        callback_handler.register_start_callback(_watch.begin)
        _watch.began = True
    if _watch.began:
        _watch.look()


def summary() -> str | None:
    """Return the line on what was compiled again in this process; None where that is usual."""
    if _watch is None:
        return None
    _watch.look()
    return str(_watch) if _watch.count > _USUAL or _watch.at_limit else None


def _key(compilation: Any) -> str:
    return f"{compilation.compile_id} {compilation.is_forward} {compilation.start_time_us}"


def _in_one_line(reason: str) -> str:
    """Return the first line of a reason without its graph's number: guard, expected, actual."""
    line = re.sub(r"^\d+/\d+: ", "", reason.strip().splitlines()[0])
    guard, _, code = line.partition("  # ")
    place = code.rpartition("  # ")[2].partition(" (HINT")[0]
    return " ".join(guard.split()) + (f" ({place})" if place else "")


def _remedy(reason: str) -> str:
    return next((remedy for guard, remedy in _REMEDIES if re.search(guard, reason)), _ELSE)
