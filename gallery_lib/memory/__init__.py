"""Host allocator, and memory layout of models and batches.

`allocator` makes glibc keep large blocks and prefaults what a run will need. `layout` chooses
channels_last where convolutions gain from it. `layout_guard` keeps a channels_last model right: a
call that fails because of strides makes the model contiguous, says so, and is repeated.
"""
