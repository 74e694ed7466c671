"""Groups of operators that a reader thinks in: convolutions, batch norms, matrix products.

An operator belongs to the first group whose pattern is found in its name. Names are those of
torch.profiler: `aten::native_batch_norm`, a CUDA kernel's, or what the compiler calls its code.
"""

from __future__ import annotations

import re

FUSED = "kernels that the compiler fused"
OPTIMIZER = "optimizer"
OTHER = "other operators"
OUTSIDE = "Python, between operators"

_PATTERNS = (
    (FUSED, r"CompiledFxGraph|Torch-Compiled|CompiledFunction|cpp_fused|^triton_"),
    ("attention", r"scaled_dot_product|flash|fmha|efficient_attention"),
    ("recurrent layers", r"lstm|gru|rnn"),
    ("convolutions", r"conv(?!ert)|wgrad|dgrad|cudnn.*(fprop|implicit)"),
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
    """Return the group of an operator.

    Args:
        operator: its name, as torch.profiler gives it.
        in_optimizer: whether an optimizer's step runs it.
    """
    if in_optimizer or operator.startswith("Optimizer."):
        return OPTIMIZER
    return next((group for group, pattern in _PATTERNS if re.search(pattern, operator)), OTHER)
