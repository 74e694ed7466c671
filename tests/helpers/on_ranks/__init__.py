"""Functions that tests have every rank run (ranks.py), by subject."""
