"""Host allocator, and memory layout of models and batches."""
