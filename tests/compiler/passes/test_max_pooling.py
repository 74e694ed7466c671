"""The graph pass that puts our max pooling in the place of torch's: what it takes, and a step."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from written_operators import compiled_with

from gallery_lib.compiler.passes.max_pooling import rewrite

LAST = torch.channels_last


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype, memory_format=LAST)


@pytest.mark.parametrize(
    ("function", "x", "taken"),
    [
        (nn.MaxPool2d(3, 2, 1), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d(2), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), image(2, 8, 12, 12), 1),
        (lambda x: functional.max_pool2d(x, 2), image(2, 8, 12, 12), 1),
        (
            lambda x: functional.max_pool2d(x, kernel_size=(2,), stride=[2], padding=0),
            image(2, 8, 12, 12),
            1,
        ),
        (lambda x: torch.max_pool2d(x, [2, 3], padding=[1]), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d(2), torch.randn(2, 8, 12, 12), 0),  # contiguous
        (nn.MaxPool2d(2), torch.randn(8, 12, 12), 0),  # one image
        (nn.MaxPool2d(2), image(2, 8, 12, 12, dtype=torch.float64), 0),
        (nn.MaxPool2d(2, dilation=2), image(2, 8, 12, 12), 0),
        (nn.MaxPool2d(17), image(2, 8, 20, 20), 0),
        (lambda x: functional.max_pool2d(x, 2, return_indices=True)[0], image(2, 8, 12, 12), 0),
        (nn.AdaptiveMaxPool2d(3), image(2, 8, 12, 12), 0),
    ],
)
def test_max_pooling_in_channels_last_is_taken_and_other_is_not(function, x, taken):
    compiled, counts = compiled_with(rewrite, torch.ops.gallery.max_pool.default, function)
    assert torch.equal(compiled(x), function(x))
    assert sum(counts) == taken
