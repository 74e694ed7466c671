"""Compiling, launching and counting of our operators, and the fallback to plain torch."""
