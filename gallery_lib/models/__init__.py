"""Architectures written from their papers, where no library offers them."""
