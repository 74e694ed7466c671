"""What cells of the notebooks call."""
