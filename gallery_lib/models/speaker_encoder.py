"""A speaker encoder: one unit vector per utterance, near for the same speaker.

Its input is frames of speech. Heigold et al., "End-to-End Text-Dependent Speaker Verification",
2016, and Wan et al., "Generalized End-to-End Loss for Speaker Verification", 2018: three LSTM
layers, each followed by a linear projection without bias. The last frame, normalised, is the
embedding. The loss learns the scale and the offset of the cosines (10 and −5 at the start). Both
are parameters of the model, so that every optimizer and every wrapper of it finds them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HAS_BFLOAT16_LSTM = not torch.backends.mkldnn.is_available() or bool(
    torch.ops.mkldnn._is_mkldnn_bf16_supported()
)
"""Whether torch has a bfloat16 LSTM for this CPU. oneDNN has none without AVX-512, and ends with an
error. There the LSTM stays in fp32."""


class ProjectedLSTM(nn.Module):
    """LSTM layer with a projection of its output: [N, T, inputs] → [N, T, projection]."""

    def __init__(self, inputs: int, hidden: int, projection: int) -> None:
        """Build an LSTM of `hidden` cells and a projection without bias."""
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.project = nn.Linear(hidden, projection, bias=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the projected outputs of every frame; the state starts at zero."""
        if (
            frames.device.type == "cpu"
            and torch.is_autocast_enabled("cpu")
            and not _HAS_BFLOAT16_LSTM
        ):
            with torch.autocast("cpu", enabled=False):
                outputs = self.lstm(frames.to(self.project.weight.dtype))[0]
        else:
            outputs = self.lstm(frames)[0]
        return self.project(outputs)


class SpeakerEncoder(nn.Module):
    """Features [..., T, dims] → unit vectors [..., projection], in float32 under autocast too."""

    def __init__(
        self, dims: int = 40, hidden: int = 768, projection: int = 256, layers: int = 3
    ) -> None:
        """Build `layers` LSTM layers of `hidden` cells for frames of `dims` values."""
        super().__init__()
        self.layers = nn.Sequential(
            *(ProjectedLSTM(projection if i else dims, hidden, projection) for i in range(layers))
        )
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.offset = nn.Parameter(torch.tensor(-5.0))
        _initialize(self.layers)

    def forward(self, features: Tensor) -> Tensor:
        """Return the embeddings; only the loss uses `scale` and `offset`."""
        last = self.layers(features.flatten(0, -3))[:, -1]  # [N, projection]
        last = last if last.dtype is torch.float64 else last.float()
        return F.normalize(last, dim=-1).unflatten(0, features.shape[:-2])


def _initialize(layers: nn.Module) -> None:
    """Initialise weights with Glorot gate by gate and biases with zero.

    So embeddings depend on what is heard from the start. With torch's own start the biases outweigh
    the input three layers deep: all embeddings point the same way, to within bfloat16's rounding.
    The gates that keep the state start open (bias 1; Jozefowicz et al., "An Empirical Exploration
    of Recurrent Network Architectures", 2015), since only the last frame is looked at.
    """
    for name, parameter in layers.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
            if "bias_ih" in name:
                # Gates are stored as input, forget, cell, output.
                nn.init.ones_(parameter.data.chunk(4)[1])
        elif "lstm.weight" in name:
            for gate in parameter.data.chunk(4):
                nn.init.xavier_normal_(gate)
        else:
            nn.init.xavier_normal_(parameter)
