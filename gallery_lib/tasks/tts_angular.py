"""A speaker encoder, trained to tell speakers apart.

The model is that of Wan et al., "Generalized End-to-End Loss for Speaker Verification", 2018. The
loss is that of Chung et al., "In Defence of Metric Learning for Speaker Recognition", 2020. Sizes
and batch size are those of TorchBench's `tts_angular`. `models/speaker_encoder.py` is written from
the papers. Unlike TorchBench's, a batch holds two utterances of each speaker, without which the
loss is not a number. The loss's scale and offset are trained.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import speaker_verification
from gallery_lib.tasks.task import FULL, QUICK, Task


def build_model() -> nn.Module:
    """Return the encoder for frames of 40 values."""
    from gallery_lib.models.speaker_encoder import SpeakerEncoder

    return SpeakerEncoder(dims=speaker_verification.DIMS)


TASK = Task(
    name="tts_angular",
    title="Speaker encoder",
    domain="speech",
    batch_size=64,
    sequence_length=50,
    length_unit="frames",
    samples_per_item=2,
    build_model=build_model,
    data=speaker_verification.utterances,
    loss=speaker_verification.loss,
    metrics=speaker_verification.metrics,
    summary=speaker_verification.summary,
    chance=speaker_verification.chance,
    optimizer=OptimizerSpec("RAdam", lr=1e-3),
    data_commands=("mock_speakers", "check_features"),
    parameters=9_381_890,
    activation_bytes_per_sample=10_600_000,
    # Weights that each frame is multiplied with: 3072·(40 + 768) + 2·3072·(256 + 768) in the LSTMs,
    # 3·768·256 in the projections; times two operations, 50 frames, and three for forward and
    # backward.
    flops_per_sample=2.81e9,
    quick=QUICK | {"batch_size": 32, "sequence_length": 32, "block_steps": 5},
    full=FULL | {"batch_size": 256, "sequence_length": 50},
)
