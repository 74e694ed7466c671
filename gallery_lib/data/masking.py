"""Training samples for BERT's masked language modelling and BART's text infilling.

A sample has `sequence_length` tokens: a start token, consecutive text and an end token. The text
is packed: it runs across documents, with an end token between them. In training the masked
positions depend on (seed, epoch, index) alone, in held-out data on the index alone. Samples are
therefore the same for any number of workers, in any order, and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gallery_lib.data.seeded_items import SeededItems
from gallery_lib.data.text import TokenisedText
from gallery_lib.errors import InputError

# label of a token that is not predicted: the default `ignore_index` of cross-entropy
IGNORED = -100
MASKED_SHARE = 0.15  # of the ordinary tokens, selected by `mask_tokens` for prediction
HIDDEN_SHARE = 0.30  # of the tokens, hidden by `infill`
MEAN_SPAN = 3.0  # mean length of a span that `infill` hides, in tokens

# function from token ids (int64 [n]) to the fields of a masked sample, each int64 [n + 2]
Hide = Callable[[np.ndarray, np.random.Generator, TokenisedText], dict[str, np.ndarray]]


def mask_tokens(
    words: np.ndarray, rng: np.random.Generator, text: TokenisedText
) -> dict[str, np.ndarray]:
    """Return `input_ids` and `labels` of BERT's masked language modelling, each int64 [n + 2].

    The rule is that of Devlin et al., 2018, on one segment. 15 % of the ordinary (not special)
    tokens are predicted, and at least one. Of these 80 % are masked, 10 % are replaced by a random
    ordinary token, and 10 % stay unchanged. `labels` holds the true token ids at the predicted
    positions and −100 elsewhere.
    """
    special = text.specials
    inputs = np.concatenate([[special.start], words, [special.end]])
    candidates = 1 + np.flatnonzero(words >= len(special.tokens))
    positions = rng.choice(
        candidates,
        min(len(candidates), max(1, round(MASKED_SHARE * len(candidates)))),
        replace=False,
    )
    labels = np.full(len(inputs), IGNORED)
    labels[positions] = inputs[positions]
    fate = rng.random(len(positions))
    inputs[positions[fate < 0.8]] = special.mask
    replaced = positions[fate >= 0.9]
    inputs[replaced] = rng.integers(len(special.tokens), text.pieces, len(replaced))
    return {"input_ids": inputs, "labels": labels}


def infill(
    words: np.ndarray, rng: np.random.Generator, text: TokenisedText
) -> dict[str, np.ndarray]:
    """Return a sample of BART's text infilling (Lewis et al., 2019).

    The encoder reads the text with gaps; the decoder writes the whole text. 30 % of the tokens are
    hidden in spans of Poisson(3) length. One mask token replaces each span; a span of length 0
    inserts a mask where no token is missing.

    All fields are int64 [n + 2]:

    - `input_ids` (padded) and `attention_mask`, for the encoder
    - `decoder_input_ids`, the labels shifted right by one
    - `labels`
    - `hidden`, 1 where the label was in a gap and 0 elsewhere
    """
    special = text.specials
    count = len(words)
    lengths = _spans(rng, max(1, round(HIDDEN_SHARE * count)))  # [spans]
    visible_before = np.sort(rng.choice(count - lengths.sum() + 1, len(lengths), replace=False))
    starts = visible_before + np.cumsum(lengths) - lengths  # [spans]; spans never touch
    parts, end = [np.array([special.start])], 0
    hidden = np.zeros(count + 2, np.int64)
    for start, length in zip(starts, lengths, strict=True):
        parts += [words[end:start], np.array([special.mask])]
        end = start + length
        hidden[1 + start : 1 + end] = 1
    source = np.concatenate([*parts, words[end:], [special.end]])
    padding = count + 2 - len(source)
    labels = np.concatenate([[special.start], words, [special.end]])
    return {
        "input_ids": np.pad(source, (0, padding), constant_values=special.pad),
        "attention_mask": np.pad(np.ones_like(source), (0, padding)),
        "decoder_input_ids": np.concatenate([[special.end], labels[:-1]]),
        "labels": labels,
        "hidden": hidden,
    }


def _spans(rng: np.random.Generator, total: int) -> np.ndarray:
    """Return at most `total` Poisson-distributed span lengths of that sum: int64 [spans]."""
    lengths = rng.poisson(MEAN_SPAN, total)
    enough = min(int(np.searchsorted(np.cumsum(lengths), total)), total - 1)
    lengths = lengths[: enough + 1]
    lengths[-1] += total - lengths.sum()
    return lengths


class PackedText(SeededItems[dict[str, Tensor]]):
    """Map-style data set of masked samples, each a dict of int64 tensors [sequence_length].

    `hide` makes the fields of a sample; the fields of a batch are [N, sequence_length]. `at_most`
    limits the number of samples, spread evenly over the text. The constructor raises InputError
    when the text is shorter than a sample.
    """

    def __init__(
        self,
        text: TokenisedText,
        split: str,
        sequence_length: int,
        hide: Hide,
        *,
        train: bool,
        seed: int = 0,
        at_most: int | None = None,
    ) -> None:
        super().__init__(train, seed)
        self.text, self.sequence_length, self.hide = text, sequence_length, hide
        self._tokens = text.tokens(split)
        self.notices = text.notices if train else ()
        self._words = sequence_length - 2  # per sample, without the start and end tokens
        samples = len(self._tokens) // self._words
        if samples < 1:
            raise InputError(
                f"sequence_length={sequence_length}: the {split} text in {text.folder} has only "
                f"{len(self._tokens)} tokens. Use shorter samples or more text.",
                parameter="sequence_length",
            )
        self._length = min(samples, at_most or samples)
        self._stride = samples / self._length

    def __len__(self) -> int:
        return self._length

    def _item(self, index: int) -> dict[str, Tensor]:
        start = int(index * self._stride) * self._words
        words = self._tokens[start : start + self._words].astype(np.int64)
        fields = self.hide(words, self.rng(index), self.text)
        return {name: torch.from_numpy(values) for name, values in fields.items()}
