"""BART-base, trained to restore a text from a version with gaps.

Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation,
Translation, and Comprehension", 2019. The model is transformers' at the sizes of bart-base, with
TorchBench's batch size. Text infilling is the only corruption: sentences stay in their order.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import language_modelling
from gallery_lib.tasks.task import FULL, QUICK


def build_model() -> nn.Module:
    """Return BART, 6 + 6 layers of width 768, with random weights (not the larger default)."""
    from transformers import BartConfig, BartForConditionalGeneration

    layers = {"encoder_layers": 6, "decoder_layers": 6}
    heads = {"encoder_attention_heads": 12, "decoder_attention_heads": 12}
    inner = {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    config = BartConfig(vocab_size=50265, d_model=768, use_cache=False, **layers, **heads, **inner)
    with language_modelling.weights_drawn_once():
        return BartForConditionalGeneration(config)


TASK = language_modelling.language_model(
    name="hf_Bart",
    title="BART",
    batch_size=4,
    sequence_length=512,
    build_model=build_model,
    data=language_modelling.infilled_text,
    optimizer=OptimizerSpec("AdamW", lr=3e-4, weight_decay=1e-2),
    parameters=139_420_416,
    activation_bytes_per_sample=634_000_000,
    # Multiply-adds of one token in and one out: 6 encoder layers of 4·768² + 2·768·3072 in linear
    # layers and 2·512·768 in attention, 6 decoder layers of 8·768² + 2·768·3072 and 4·512·768 (its
    # own half, which is causal, counted whole), and 768·50265 in the head; ×2 FLOP, ×3 for forward
    # and backward, ×512 tokens.
    flops_per_sample=466e9,
    quick=QUICK | {"batch_size": 4, "sequence_length": 32, "block_steps": 2},
    full=FULL | {"batch_size": 32, "sequence_length": 512},
)
