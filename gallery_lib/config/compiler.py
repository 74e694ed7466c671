"""Options of the compiler and of the graph passes inside it: `config.compiler`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gallery_lib.config.options import option
from gallery_lib.config.settable import Settable


@dataclass
class Compiler(Settable):
    """Compiler behind the accelerated backend."""

    enabled: bool = option(
        True,
        "Compile the model. The first step waits for the compiler; a short run never "
        "earns that back.",
    )
    backend: str = option("inductor", "Compiler, by its name in the registry of backends.")
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = (
        option(
            "default",
            "Mode of torch.compile. max-autotune searches longer for faster kernels.",
        )
    )
    cuda_graphs: bool = option(
        True,
        "On CUDA, capture each compiled graph whose shapes are static, and replay it. The host "
        "then queues one launch instead of hundreds. Needs more memory.",
    )
    keep_activations: float = option(
        1.0,
        "Share of the activations kept for the backward pass; the rest is recomputed. "
        "Lower it where memory is short. Steps get slower.",
        minimum=0,
        maximum=1,
    )
    any_threads: bool = option(
        False,
        "Generate CPU code for any number of threads, so that runs of one and of "
        "several processes share compiled code. Steps may be slower.",
    )
    short_attention: bool = option(
        True,
        "On a CPU, compute attention over short sequences as plain products. torch's "
        "fused operator is slower there.",
    )
    small_convolutions: bool = option(
        True,
        "On a CPU with AVX512-BF16, compute bfloat16 convolutions over few positions as "
        "matrix products, which are faster there.",
    )
    vector_dropout: bool = option(
        True,
        "On a CPU, draw dropout's random numbers by vector instructions. Compiled code "
        "would draw the same numbers one by one.",
    )
    vector_masks: bool = option(
        True,
        "On a CPU, read and write masks (of ReLU, dropout, attention) by vector instructions. "
        "Compiled code would go over them one by one.",
    )
    whole_upsampling: bool = option(
        True,
        "On a CPU, enlarge images (bilinear, bicubic) by torch's operator. Compiled "
        "code would add up its gradient pixel by pixel.",
    )
    max_pooling: bool = option(
        True,
        "On a CPU, pool images in channels_last (max pooling) in C++. Compiled code "
        "would scatter its gradient pixel by pixel.",
    )
    large_batch_norms: bool = option(
        True,
        "On a CPU with AVX-512, compute bfloat16 batch norms over images in channels_last of a MiB "
        "and more, with the residual and the ReLU behind them, in C++. Compiled code would go "
        "through memory in strides.",
    )
    all_batch_norms: bool = option(
        False,
        "Compute batch norms over images in channels_last of every size so, in fp32 too, and on "
        "CUDA by own kernels. This is for measurements. On a CPU small ones gain nothing; on CUDA "
        "own kernels move as many bytes as the compiler's, and take more of the host.",
    )
    mixed_products: bool = option(
        True,
        "On a CPU with AVX512-BF16, multiply few rows in bfloat16 by weights as they lie in fp32, "
        "and store gradients so. Compiled code would copy both in each step. A weight must not "
        "change between a forward pass and its backward pass then, as in fp32.",
    )
    bf16_on_fp32_units: bool = option(
        True,
        "On a CPU without bfloat16 units, compute bfloat16 products on the fp32 units "
        "instead of emulating them.",
    )
