"""Roofline of a training step: time of each group of operators, beside the time at the limits."""
