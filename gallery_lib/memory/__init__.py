"""Host allocator and memory layout."""
