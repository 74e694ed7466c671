"""Functions that the cells of the notebooks call."""
