"""Speech-Transformer on filter banks of short utterances.

Dong, Xu and Xu, "Speech-Transformer: A No-Recurrence Sequence-to-Sequence Model for Speech
Recognition", 2018. `models/speech_transformer.py` is written from the paper. Sizes and batch size
are TorchBench's: 4,233 characters, 160 stacked frames, 15 characters per utterance. Lengths differ
from batch to batch, so shapes do.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from gallery_lib.optim import OptimizerSpec, noam
from gallery_lib.tasks.domains import speech_recognition
from gallery_lib.tasks.task import FULL, QUICK, Task

VOCABULARY = 4233


def build_model() -> nn.Module:
    """Return the base model; Xavier's weights keep rounding errors small."""
    from gallery_lib.models.speech_transformer import Sizes, SpeechTransformer

    return SpeechTransformer(Sizes(vocabulary=VOCABULARY))


TASK = Task(
    name="speech_transformer",
    title="Speech-Transformer",
    domain="speech recognition",
    batch_size=32,
    sequence_length=160,
    length_unit="frames",
    build_model=build_model,
    data=partial(speech_recognition.utterances, vocabulary_size=VOCABULARY),
    loss=speech_recognition.loss,
    metrics=speech_recognition.metrics,
    chance=speech_recognition.chance,
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
