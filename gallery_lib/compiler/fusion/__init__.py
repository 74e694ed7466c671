"""Fusion of BatchNorm, a residual and ReLU into one operator, by rewriting modules in place.

`batch_norm` has `fuse_batchnorm(model)`. `torchvision_models` and `timm_models` know where those
libraries' blocks have the pattern.
"""
