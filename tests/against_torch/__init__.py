"""Differential tests: Hypothesis draws trainings, and plain PyTorch and the product must agree."""
