"""What tests have every rank do (ranks.py), by subject."""
