"""Architectures that no well-kept library has, written from their papers."""
