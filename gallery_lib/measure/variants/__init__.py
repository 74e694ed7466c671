"""Variants of a bench: `peers` that a user could pick instead, and `recipes` of techniques."""
