"""Plain PyTorch against the product: Hypothesis draws trainings, and both have to be the same."""
