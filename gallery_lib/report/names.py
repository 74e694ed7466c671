"""People's names of what identifiers stand for: tasks, a bench's baseline, techniques."""

from __future__ import annotations

from gallery_lib.measure.bench.result import EAGER, Bench


def task_title(name: str) -> str:
    """Return the title of one of the gallery's tasks, and the name of another."""
    from gallery_lib import tasks

    return tasks.get(name).title if name in tasks.names() else name.rsplit(":", 1)[-1]


def baseline_title(bench: Bench) -> str:
    """Return what the baseline of the bench is: `eager in fp32` or `eager in bf16`."""
    if bench.baseline == EAGER["O0"]:
        return "eager in fp32"
    dtype = bench.options.get("amp_dtype") or "auto"
    if dtype == "auto":
        dtype = "bf16" if bench.environment.get("device") == "cpu" else "mixed precision"
    return f"eager in {dtype}"


MEANINGS = {
    "layout": "convolutions read all channels of a pixel side by side (`channels_last`)",
    "allocator": "memory of large tensors is kept from step to step, without page faults",
    "compiler": "torch's compiler makes one kernel of several operators",
    "bf16-on-fp32-units": "bfloat16 products run on the fp32 units of a CPU without bfloat16 ones",
    "short-attention": "attention over short sequences becomes batched matrix products",
    "whole-upsampling": "torch's own operators enlarge images, instead of atomic additions",
    "max-pooling": "the gradient of a pooling is one pass over the image, not a scatter",
    "large-batch-norms": "batch norms over large images go over memory in order",
    "vector-masks": "masks of ReLU and dropout are read and written by vector instructions",
    "small-convolutions": "convolutions over few pixels become matrix products",
    "mixed-products": "weights are rounded to bfloat16 as they are read, without copies of them",
    "nice-loading": "processes that load data step back behind the training",
    "fused-optimizer": "the optimizer updates all weights in one pass over memory",
    "all others": "the techniques of the backend without a row of their own",
}
"""What each technique does, as half a sentence."""
