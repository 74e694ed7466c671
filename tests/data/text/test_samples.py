"""Samples of tokenised text: packing, masking, infilling, and the same gaps for all workers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import refused
from torch.utils.data import DataLoader

from gallery_lib.data.text import tokenized as text
from gallery_lib.data.text.masking import IGNORED, Hide, PackedText, infill, mask_tokens


def batches(dataset: PackedText) -> torch.Tensor:
    return torch.cat([batch["input_ids"] for batch in DataLoader(dataset, 5)])


def words_of(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the words of a masked sample as they were."""
    return torch.where(sample["labels"] == IGNORED, sample["input_ids"], sample["labels"])


@pytest.mark.parametrize(("kind", "hide"), [("wordpiece", mask_tokens), ("byte-bpe", infill)])
def test_samples_are_int64_of_the_asked_length_and_follow_each_other(
    prepared: Path, kind: str, hide: Hide
) -> None:
    tokens = text.find(str(prepared), kind)
    for length in (8, 64, 512):
        dataset = PackedText(tokens, "train", length, hide, train=True)
        samples = [dataset[index] for index in range(len(dataset))]
        assert len(samples) == len(tokens.tokens("train")) // (length - 2)
        assert {(value.shape, value.dtype) for sample in samples for value in sample.values()} == {
            ((length,), torch.int64)
        }
        if hide is infill:
            words = torch.cat([sample["labels"][1:-1] for sample in samples])
        else:
            words = torch.cat([words_of(sample)[1:-1] for sample in samples])
        assert torch.equal(
            words, torch.from_numpy(tokens.tokens("train")[: len(words)].astype(np.int64))
        )


def test_held_out_samples_are_fixed_and_spread_over_the_text(wordpiece: text.TokenisedText) -> None:
    dataset = PackedText(wordpiece, "held_out", 16, mask_tokens, train=False, at_most=7)
    every = PackedText(wordpiece, "held_out", 16, mask_tokens, train=False)
    other = PackedText(wordpiece, "held_out", 16, mask_tokens, train=False, seed=9, at_most=7)
    first = batches(dataset)
    dataset.set_epoch(5)
    assert torch.equal(first, batches(dataset)) and torch.equal(first, batches(other))
    assert len(first) == 7 and len(every) > 50
    last = words_of(dataset[6])
    place = [torch.equal(last, words_of(every[index])) for index in range(len(every))]
    assert place.index(True) > 0.8 * len(every)


def test_bert_masks_15_percent_of_the_words_four_fifths_of_them_with_the_mask(
    wordpiece: text.TokenisedText,
) -> None:
    dataset = PackedText(wordpiece, "train", 128, mask_tokens, train=True)
    samples = [dataset[index] for index in range(len(dataset))]
    for epoch in range(1, 6):
        dataset.set_epoch(epoch)
        samples += [dataset[index] for index in range(len(dataset))]
    inputs, labels = (
        torch.stack([sample[name] for sample in samples]) for name in ("input_ids", "labels")
    )
    chosen = labels != IGNORED
    assert not chosen[:, 0].any() and not chosen[:, -1].any() and (labels[chosen] >= 5).all()
    share = chosen.float().mean(dim=1) * 128 / 126
    assert share.min() > 0.13 and share.max() < 0.16
    masked, kept = inputs[chosen] == wordpiece.specials.mask, inputs[chosen] == labels[chosen]
    replaced = inputs[chosen][~masked & ~kept]
    assert abs(masked.float().mean() - 0.8) < 0.02 and abs(kept.float().mean() - 0.1) < 0.02
    assert (
        replaced.min() >= 5
        and replaced.max() < wordpiece.pieces
        and len(replaced.unique()) > len(replaced) / 4
    )
    every_word_may_be_chosen = chosen.any(dim=0)[1:-1].float().mean()
    assert every_word_may_be_chosen == 1


def test_bart_hides_30_percent_of_the_words_in_spans_of_three_on_average(
    byte_bpe: text.TokenisedText,
) -> None:
    mask = byte_bpe.specials.mask
    words = np.arange(100, 100 + 200)  # each once, so that it can be told what is missing
    lengths = []
    for seed in range(200):
        sample = infill(words, np.random.default_rng(seed), byte_bpe)
        source = sample["input_ids"][sample["attention_mask"] == 1]
        assert (source[0], source[-1]) == (0, 2) and (
            sample["input_ids"][len(source) :] == byte_bpe.specials.pad
        ).all()
        assert sample["hidden"].sum() == 60
        visible = source[1:-1][source[1:-1] != mask]
        assert np.array_equal(visible, words[sample["hidden"][1:-1] == 0])
        assert sample["labels"].tolist() == [0, *words, 2] and sample[
            "decoder_input_ids"
        ].tolist() == [2, 0, *words]
        edges = np.diff(np.concatenate([[0], sample["hidden"], [0]]))
        runs = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        spans = (source == mask).sum()
        assert len(runs) <= spans
        lengths += [*runs, *[0] * (spans - len(runs))]
    assert (
        abs(np.mean(lengths) - 3) < 0.2
        and abs(np.mean(np.array(lengths) == 0) - np.exp(-3)) < 0.02
        and max(lengths) > 7
    )


def test_infilling_never_outgrows_the_sample(byte_bpe: text.TokenisedText) -> None:
    for count in (6, 7, 10, 30):
        for seed in range(300):
            sample = infill(np.arange(100, 100 + count), np.random.default_rng(seed), byte_bpe)
            assert {len(values) for values in sample.values()} == {count + 2} and sample[
                "hidden"
            ].sum() == max(1, round(0.3 * count))


def test_a_text_that_is_shorter_than_a_sample_says_so(wordpiece: text.TokenisedText) -> None:
    with refused("sequence_length", 100_000, "held_out", re.compile(r"\d+ tokens")):
        PackedText(wordpiece, "held_out", 100_000, mask_tokens, train=False)
