"""Compile, launch and count our operators."""
