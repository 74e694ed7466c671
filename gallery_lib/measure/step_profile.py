"""Time of a training step by groups of operators, with torch.profiler.

A reader thinks in convolutions, batch norms, matrix products. The profiler costs time itself, most
where operators are small. So its times are for seeing what a step consists of. How fast a step is,
a comparison in turns says (measure/comparison).
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FUSED = "kernels that the compiler fused"
OPTIMIZER = "optimizer"
OTHER = "other operators"
OUTSIDE = "Python, between operators"
# An operator belongs to the first group whose pattern is found in its name: `aten::…`, a CUDA
# kernel's, or what the compiler calls its code.
_PATTERNS = (
    (FUSED, r"CompiledFxGraph|Torch-Compiled|CompiledFunction|cpp_fused|^triton_"),
    ("attention", r"scaled_dot_product|flash|fmha|efficient_attention"),
    ("recurrent layers", r"lstm|gru|rnn"),
    ("convolutions", r"conv(?!ert)|winograd|wgrad|dgrad|cudnn.*(fprop|implicit)"),
    ("batch norms", r"batch_norm|bn_(fw|bw)"),
    ("layer norms", r"layer_norm|group_norm|LayerNorm"),
    (
        "matrix products",
        r"::(add)?mm|bmm|baddbmm|matmul|mixed_product|exact_products|(?<!bi)(?<!tri)linear|gemm|einsum|addmv"
        r"|cutlass",
    ),
    ("loss", r"log_softmax|nll_loss|cross_entropy"),
    ("softmax", r"softmax"),
    ("dropout", r"dropout|bernoulli"),
    ("activations", r"relu|gelu|silu|sigmoid|tanh|hardswish|threshold|glu_"),
    ("pooling", r"pool"),
    ("resampling", r"upsample|interpolate|grid_sampl"),
    ("scatters", r"scatter|index_put|index_add"),
    ("embeddings", r"embedding|index_select|gather"),
    ("copies and conversions", r"copy_|::_?to\b|_to_copy|clone|contiguous|::cat|memcpy|stack|pad"),
    ("sums and means", r"::sum|::mean|reduce|::norm|linalg_vector_norm|var_mean"),
    ("fills and new memory", r"zero_|fill_|empty|zeros|ones|memset|resize_"),
    (
        "element-wise operators",
        r"add|sub|mul|div|sqrt|pow|rsqrt|neg|where|clamp|masked|elementwise",
    ),
)


def group_of(operator: str, *, in_optimizer: bool = False) -> str:
    """Return the group of an operator, by its name and whether an optimizer's step runs it."""
    if in_optimizer or operator.startswith("Optimizer."):
        return OPTIMIZER
    return next((group for group, pattern in _PATTERNS if re.search(pattern, operator)), OTHER)


@dataclass(frozen=True)
class StepProfile:
    """Seconds of one step by group of operators, the largest first, profiler included."""

    groups: dict[str, float]

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return sum(self.groups.values())

    def share(self, group: str) -> float:
        """Return the part of the step that a group takes, from 0 to 1."""
        return self.groups.get(group, 0.0) / self.seconds


def profile_steps(run: Callable[[], Any], steps: int) -> StepProfile:
    """Have `run` do `steps` training steps under the profiler, and return the time of one.

    On CUDA the time is that of the kernels on the device, and what is between them is waiting. On
    the CPU it is that of the operators, without those that they call. A compiled model must have
    been compiled before.
    """
    import torch  # imported here: charts need the groups alone
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells nothing of what it does
    on_cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        began = time.perf_counter()
        run()
        if on_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    groups: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        own = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if own > 0 and not event.name.startswith("ProfilerStep"):
            group = group_of(event.name, in_optimizer=_is_in_optimizer(event))
            groups[group] += own / 1e6 / steps
    outside = seconds / steps - sum(groups.values())
    if outside > 0:
        groups[OUTSIDE] = outside
    return StepProfile(dict(sorted(groups.items(), key=lambda item: -item[1])))


def _is_in_optimizer(event: Any) -> bool:
    while event is not None:
        if event.name.startswith("Optimizer.step"):
            return True
        event = event.cpu_parent
    return False
