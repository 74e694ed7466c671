"""Imports of the fork server: everything that a case needs, and nothing that starts a thread."""

import torch._dynamo
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
import torch.nn.parallel
import torch.optim.swa_utils

from . import rank

__all__ = ["rank", "torch"]
