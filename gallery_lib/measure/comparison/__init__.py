"""Compare two variants of a training run."""
