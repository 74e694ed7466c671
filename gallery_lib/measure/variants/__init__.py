"""Variants of a measurement: our backend, its peers, and a user who tunes by hand."""
