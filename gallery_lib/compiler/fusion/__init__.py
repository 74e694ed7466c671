"""Fusion of several operators into one, by rewriting modules."""
