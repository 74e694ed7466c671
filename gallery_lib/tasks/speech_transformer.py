"""Speech-Transformer: filter banks of short utterances to characters, by attention alone.

Dong, Xu and Xu, "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech
Recognition", 2018. Its layers are those of Vaswani et al., "Attention Is All You Need", 2017, with
the norm after each residual addition. In TorchBench's variant stacked frames
(data/speech/utterances.py) and a linear layer take the place of the paper's convolutions. Sizes and
batch size are TorchBench's: 4,233 characters, 160 stacked frames, 15 characters per utterance.
Lengths differ from batch to batch, so shapes do.

The decoder's embedding is also its output projection. Masks come from lengths: what pads a batch
gets no attention. Padded targets need no mask, since they come last and attention among targets
only looks back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.characters import BEGIN, END, UNKNOWN
from gallery_lib.data.speech.utterances import IGNORED, SpeechBatch, SpeechFolder
from gallery_lib.optim import OptimizerSpec, noam
from gallery_lib.system import paths
from gallery_lib.tasks.domains.cross_entropy import cross_entropy
from gallery_lib.tasks.task import FULL, QUICK, Splits, Task

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


LABEL_SMOOTHING = 0.1


def utterances(config: TrainConfig) -> Splits:
    """Return `train/` and `val/` of the folder `config.data_dir`, else of the mock speech.

    Utterances have about `config.sequence_length` frames.
    """
    root = Path(config.data_dir or paths.data_dir("speech-small"))
    assert config.sequence_length is not None
    train = SpeechFolder(root / "train", config.sequence_length, VOCABULARY)
    return Splits(
        train=train,
        held_out=SpeechFolder(root / "val", config.sequence_length, VOCABULARY, train),
    )


def loss(model: nn.Module, batch: SpeechBatch) -> Tensor:
    """Return the cross-entropy with smoothed labels, over what is no padding.

    The arithmetic is in fp32 under autocast too.
    """
    logits = model(batch.features, batch.lengths, batch.inputs)  # [N, U, vocabulary]
    return cross_entropy(
        logits.flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        label_smoothing=LABEL_SMOOTHING,
    )


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn `a` into `b`.

    Levenshtein, 1966.
    """
    row = list(range(len(b) + 1))  # distances from what has been seen of a to each prefix of b
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _until_end(tokens: Sequence[int]) -> list[int]:
    """Return the tokens before END or padding."""
    stops = [i for i, token in enumerate(tokens) if token in (END, IGNORED)]
    return list(tokens[: stops[0]] if stops else tokens)


def metrics(model: Any, batch: SpeechBatch) -> dict[str, tuple[Tensor, int]]:
    """Return character error rate of greedy search, and accuracy of the next character.

    The search goes up to the padded length. For the accuracy, all characters before the next one
    are given. An unknown character is never right.
    """
    references = [_until_end(labels) for labels in batch.labels.tolist()]
    found = model.transcribe(batch.features, batch.lengths, batch.labels.shape[1])
    transcripts = [
        [-1 if token == UNKNOWN else token for token in _until_end(tokens)]
        for tokens in found.tolist()
    ]
    errors = sum(map(edit_distance, references, transcripts))
    counted = (batch.labels != IGNORED) & (batch.labels != END)  # [N, U]
    best = model(batch.features, batch.lengths, batch.inputs).argmax(-1)
    right = (best == batch.labels) & counted & (batch.labels != UNKNOWN)
    characters = sum(map(len, references))
    return {
        "character_error_rate": (torch.tensor(errors, device=batch.labels.device), characters),
        "character_accuracy": (right.sum(), characters),
    }


def chance(splits: Splits) -> dict[str, float]:
    """Return the metrics of a model that knows nothing.

    An empty transcript misses every character. The accuracy is the share of the most frequent
    character among the held-out ones.
    """
    data: Any = splits.held_out
    counts = Counter("".join(piece.transcript for piece in data.pieces))
    return {
        "character_error_rate": 1.0,
        "character_accuracy": max(counts.values()) / counts.total(),
    }


VOCABULARY = 4233


def build_model() -> nn.Module:
    """Return the base model; Xavier's weights keep rounding errors small."""
    return SpeechTransformer(Sizes(vocabulary=VOCABULARY))


TASK = Task(
    name="speech_transformer",
    title="Speech-Transformer",
    domain="speech recognition",
    batch_size=32,
    sequence_length=160,
    length_unit="frames",
    build_model=build_model,
    data=utterances,
    loss=loss,
    metrics=metrics,
    chance=chance,
    # The paper's formula with a short warm-up, for runs of dozens of steps. Of the peaks tried at
    # the quick sizes, 1e-4 to 1e-3, this one had the lowest loss and error rate after 60 steps. A
    # long training wants a longer warm-up.
    optimizer=OptimizerSpec(
        "Adam", lr=2e-4, arguments={"betas": (0.9, 0.98), "eps": 1e-9}, schedule=noam(30)
    ),
    data_commands=("mock_speech", "check_features"),
    parameters=46_471_168,  # 44,303,872 and 512 for each of 4,233 tokens
    activation_bytes_per_sample=53_700_000,
    # 4.11 G multiplications and additions forward at 160 frames and 16 targets (encoder 3.20, keys
    # and values for the decoder 0.50, the rest of the decoder 0.37, output 0.03), two FLOPs each;
    # backward costs twice as much as forward
    flops_per_sample=24.7e9,
    quick=QUICK | {"batch_size": 8, "sequence_length": 40},
    full=FULL | {"batch_size": 32, "sequence_length": 160},
)
