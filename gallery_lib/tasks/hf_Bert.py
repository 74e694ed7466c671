"""BERT-base, trained to fill in masked words.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
2018. The model is transformers' with its default configuration, with TorchBench's batch size. The
training is masked language modelling alone, on one segment of packed text (as RoBERTa does it),
without the next-sentence task.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import language_modelling
from gallery_lib.tasks.task import FULL, QUICK


def build_model() -> nn.Module:
    """Return BERT with 12 layers of width 768 and random weights.

    No attention mask is needed, since every sample is of full length.
    """
    from transformers import BertConfig, BertForMaskedLM

    with language_modelling.weights_drawn_once():
        return BertForMaskedLM(BertConfig())


TASK = language_modelling.language_model(
    name="hf_Bert",
    title="BERT",
    batch_size=4,
    sequence_length=512,
    build_model=build_model,
    data=language_modelling.masked_text,
    optimizer=OptimizerSpec("AdamW", lr=3e-4, weight_decay=1e-2),
    parameters=109_514_298,
    activation_bytes_per_sample=927_000_000,
    # Multiply-adds of one token: 12 layers of 4·768² + 2·768·3072 in linear layers and 2·512·768 in
    # attention, and 768² + 768·30522 in the head; ×2 FLOP, ×3 for forward and backward, ×512
    # tokens.
    flops_per_sample=364e9,
    quick=QUICK | {"batch_size": 4, "sequence_length": 32, "rounds": 5},
    full=FULL | {"batch_size": 32, "sequence_length": 512},
)
