"""Shared parts of language modelling: text with gaps, cross-entropy, accuracy in the gaps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data import text
from gallery_lib.data.masking import IGNORED, Hide, PackedText, infill, mask_tokens
from gallery_lib.errors import InputError
from gallery_lib.tasks.domains.cross_entropy import cross_entropy
from gallery_lib.tasks.task import Splits, Task

Batch = dict[str, Tensor]  # each int64 [N, L], see data/masking.py for the fields

HELD_OUT_SAMPLES = 64
MODEL_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")


def _left_undrawn(module: nn.Module) -> None:
    """Draw nothing: stand-in for `reset_parameters`."""


@contextlib.contextmanager
def weights_drawn_once() -> Iterator[None]:
    """Context: draw each weight of a transformers model once, when the model is complete.

    The weights are drawn in transformers' way. Without this context torch draws them as well.
    transformers also draws those that share a tensor before they share it (BART's embeddings and
    its head: 39 million each of four times). This is for linear layers and embeddings only. What is
    built without transformers stays undrawn.
    """
    from transformers import PreTrainedModel

    patched: Any = PreTrainedModel
    layers: tuple[Any, ...] = (nn.Linear, nn.Embedding)
    own: list[Callable[..., None]] = [layer.reset_parameters for layer in layers]
    draw: Callable[..., None] = patched._initialize_weights
    undrawn: list[tuple[Any, ...]] = []
    for layer in layers:
        layer.reset_parameters = _left_undrawn
    patched._initialize_weights = lambda *module: undrawn.append(module)
    try:
        yield
    finally:
        patched._initialize_weights = draw
        for layer, reset_parameters in zip(layers, own, strict=True):
            layer.reset_parameters = reset_parameters
    _draw_once(draw, undrawn)


@torch.no_grad()
def _draw_once(draw: Callable[..., None], undrawn: Sequence[tuple[Any, ...]]) -> None:
    """Call `draw(model, module, …)` for all, each parameter for the first module that has it.

    Other modules that share a parameter have an empty one in its place during the call.
    """
    drawn: set[nn.Parameter] = set()
    for model, module, *rest in undrawn:
        shared = {name: one for name, one in module._parameters.items() if one in drawn}
        own = set(module.parameters(recurse=False)) - drawn
        if shared and not own:
            continue
        module._parameters.update({name: nn.Parameter(torch.empty(0)) for name in shared})
        try:
            draw(model, module, *rest)
        finally:
            module._parameters.update(shared)
        drawn |= own


def masked_text(config: TrainConfig) -> Splits:
    """Return text for BERT, at most 512 tokens a sample: `config.data_dir` or English at hand."""
    return _splits(config, "wordpiece", mask_tokens, positions=512)


def infilled_text(config: TrainConfig) -> Splits:
    """Return text for BART, at most 1024 tokens a sample: `config.data_dir` or English at hand."""
    return _splits(config, "byte-bpe", infill, positions=1024)


def _splits(config: TrainConfig, kind: str, hide: Hide, positions: int) -> Splits:
    length = config.sequence_length
    assert length is not None
    if length > positions:
        wanted = f"{config.model} has {positions} positions. Use at most {positions} tokens."
        raise InputError(f"sequence_length={length}: {wanted}", parameter="sequence_length")
    tokens = text.find(config.data_dir, kind)
    held_out = PackedText(tokens, "held_out", length, hide, train=False, at_most=HELD_OUT_SAMPLES)
    train = PackedText(tokens, "train", length, hide, train=True, seed=config.seed)
    return Splits(train, held_out)


def _hidden(batch: Batch) -> Tensor:
    """Return where the model has to guess, bool [N, L]; BART also writes what its encoder sees."""
    return batch["hidden"].bool() if "hidden" in batch else batch["labels"] != IGNORED


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the labels, in fp32 under autocast too.

    The models' own loss would make float64 float32.
    """
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    logits = model(**inputs).logits.flatten(0, 1)  # [N × L, vocabulary]
    labels = batch["labels"].flatten()
    return cross_entropy(logits, labels, ignore_index=IGNORED)


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """Return hits and negative log-likelihood (in nats) of the hidden tokens."""
    hidden = _hidden(batch)
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    logits = model(**inputs).logits[hidden]  # [M, vocabulary]
    labels = batch["labels"][hidden]  # [M]
    return {
        "masked_accuracy": ((logits.argmax(dim=1) == labels).sum(), len(labels)),
        "negative_log_likelihood": (cross_entropy(logits, labels, reduction="sum"), len(labels)),
    }


def summary(means: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the share of hidden tokens that were guessed, and the perplexity."""
    return {
        "masked_accuracy": float(means["masked_accuracy"]),
        "perplexity": math.exp(min(700.0, float(means["negative_log_likelihood"]))),
    }


def chance(splits: Splits) -> dict[str, float]:
    """Return the metrics of always the most frequent hidden token, and of any piece alike."""
    data: Any = splits.held_out
    samples = [data[index] for index in range(len(data))]
    labels = torch.cat([sample["labels"][_hidden(sample)] for sample in samples])
    return {
        "masked_accuracy": float(labels.bincount().max()) / len(labels),
        "perplexity": float(data.text.pieces),
    }


language_model = partial(
    Task,
    domain="language",
    loss=loss,
    metrics=metrics,
    summary=summary,
    chance=chance,
    data_commands=("text",),
)
"""Task of a language model, complete but for its name, data, model, sizes and optimizer."""
