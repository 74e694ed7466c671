"""Speech-Transformer: filter banks to characters, by attention alone.

Dong, Xu and Xu, "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech
Recognition", 2018. Its layers are those of Vaswani et al., "Attention Is All You Need", 2017, with
the norm after each residual addition. In TorchBench's variant stacked frames
(data/speech/utterances.py) and a linear layer take the place of the paper's convolutions.

The decoder's embedding is also its output projection. Masks come from lengths: what pads a batch
gets no attention. Padded targets need no mask, since they come last and attention among targets
only looks back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.data.speech.characters import BEGIN, END

KeysValues = tuple[Tensor, Tensor]  # each [N, heads, T, width / heads]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model; the defaults are the paper's base model."""

    features: int = 320  # values of a stacked frame
    vocabulary: int = 4233  # characters and the three special tokens
    width: int = 512
    heads: int = 8
    inner: int = 2048  # of the feed-forward layers
    layers: int = 6  # of the encoder, and as many of the decoder
    dropout: float = 0.1


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al., section 3.2)."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the four projections of `heads` heads, `width` wide together."""
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        # [N, T, width] → [N, heads, T, width / heads]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys_values(self, memory: Tensor) -> KeysValues:
        """Return the keys and values that `memory` [N, T, width] offers to attention."""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def forward(
        self, x: Tensor, memory: KeysValues, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Return x [N, U, width] after attention to `memory`, [N, U, width].

        `mask`, bool [N, 1, 1, T], is true where memory may be attended to.
        """
        attended = F.scaled_dot_product_attention(
            self._split(self.query(x)), *memory, attn_mask=mask, is_causal=causal
        )
        return self.output(attended.transpose(1, 2).flatten(2))


def _feed_forward(sizes: Sizes) -> nn.Module:
    return nn.Sequential(
        nn.Linear(sizes.width, sizes.inner), nn.ReLU(), nn.Linear(sizes.inner, sizes.width)
    )


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes.width, sizes.heads)
        self.feed_forward = _feed_forward(sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.width) for _ in range(2))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [N, T, width] for [N, T, width]."""
        x = self.norms[0](x + self.dropout(self.attention(x, self.attention.keys_values(x), mask)))
        return self.norms[1](x + self.dropout(self.feed_forward(x)))


class DecoderLayer(nn.Module):
    """Self-attention that looks back only, attention to the encoder, then a feed-forward layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes.width, sizes.heads)
        self.attention_to_encoder = Attention(sizes.width, sizes.heads)
        self.feed_forward = _feed_forward(sizes)
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.width) for _ in range(3))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, encoded: KeysValues, mask: Tensor) -> Tensor:
        """Return [N, U, width] for [N, U, width]."""
        x = self.norms[0](
            x + self.dropout(self.attention(x, self.attention.keys_values(x), causal=True))
        )
        x = self.norms[1](x + self.dropout(self.attention_to_encoder(x, encoded, mask)))
        return self.norms[2](x + self.dropout(self.feed_forward(x)))


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """Return sines and cosines of the position, [length, width], in the dtype of `like`.

    Vaswani et al., section 3.5. They are computed in float64 each time, and rounded once: there is
    no longest length, and no buffer to broadcast.
    """
    exact: dict[str, Any] = {"dtype": torch.float64, "device": like.device}
    position, even = torch.arange(length, **exact), torch.arange(0, width, 2, **exact)
    rate = torch.exp(even * (-math.log(10_000.0) / width))
    angle = position[:, None] * rate  # [length, width / 2]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(like.dtype)


class SpeechTransformer(nn.Module):
    """Encoder and decoder; `forward` is for training, `transcribe` for use."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes = sizes or Sizes()
        self.input = nn.Linear(sizes.features, sizes.width)
        self.input_norm = nn.LayerNorm(sizes.width)
        self.encoder = nn.ModuleList(EncoderLayer(sizes) for _ in range(sizes.layers))
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.decoder = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.dropout = nn.Dropout(sizes.dropout)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise the linear layers with Xavier, and the embedding with a deviation of width^-½.

        With the norm after the addition, all branches count from the start, which Xavier suits. The
        embedding's rows times √width have unit variance, and so have the first logits.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.sizes.width**-0.5)

    def encode(self, features: Tensor, mask: Tensor) -> Tensor:
        """Return features [N, T, 320] encoded as [N, T, width]."""
        x = self.input_norm(self.input(features))
        x = self.dropout(x + positions(x.shape[1], self.sizes.width, like=x))
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def _memories(self, encoded: Tensor) -> list[KeysValues]:
        """Return the keys and values that each decoder layer attends to."""
        return [layer.attention_to_encoder.keys_values(encoded) for layer in self.decoder]  # type: ignore[union-attr, operator]

    def _decode(self, tokens: Tensor, memories: list[KeysValues], mask: Tensor) -> Tensor:
        """Return tokens int64 [N, U] decoded as [N, U, width]."""
        x = self.embedding(tokens) * math.sqrt(self.sizes.width)
        x = self.dropout(x + positions(tokens.shape[1], self.sizes.width, like=x))
        for layer, memory in zip(self.decoder, memories, strict=True):
            x = layer(x, memory, mask)
        return x

    def _logits(self, decoded: Tensor) -> Tensor:
        return F.linear(decoded, self.embedding.weight)

    def forward(self, features: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits [N, U, vocabulary] of the token that follows each of `tokens`.

        Args:
            features: float [N, T, 320].
            lengths: int64 [N], how many of the first frames are no padding.
            tokens: int64 [N, U], which begin with BEGIN. Padding at the end does not affect the
                tokens before it.
        """
        mask = _mask(features, lengths)
        return self._logits(self._decode(tokens, self._memories(self.encode(features, mask)), mask))

    @torch.no_grad()
    def transcribe(self, features: Tensor, lengths: Tensor, max_length: int) -> Tensor:
        """Return the tokens of a greedy search, int64 [N, ≤ max_length], with END behind each end.

        Greedy search takes the likeliest next token, again and again. For each token the decoder
        runs over the whole prefix, which is cheap enough for some dozen tokens.
        """
        mask = _mask(features, lengths)
        memories = self._memories(self.encode(features, mask))
        tokens = torch.full((len(features), 1), BEGIN, device=features.device)
        ended = torch.zeros(len(features), dtype=torch.bool, device=features.device)
        for _ in range(max_length):
            logits = self._logits(self._decode(tokens, memories, mask)[:, -1])
            best = logits.argmax(-1).masked_fill(ended, END)
            tokens = torch.cat((tokens, best[:, None]), dim=1)
            ended |= best == END
            if bool(ended.all()):
                break
        return tokens[:, 1:]


def _mask(features: Tensor, lengths: Tensor) -> Tensor:
    """Return bool [N, 1, 1, T], true for frames that are no padding."""
    frames = torch.arange(features.shape[1], device=features.device)
    return (frames < lengths[:, None])[:, None, None, :]
