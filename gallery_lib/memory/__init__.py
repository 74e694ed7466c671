"""Host allocator, and memory layout of convolutions.

`allocator` makes glibc keep large blocks and prefaults what a run will need. `layout` chooses
channels_last where convolutions gain from it.
"""
