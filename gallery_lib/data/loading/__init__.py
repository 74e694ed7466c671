"""Bring batches from a DataLoader to the device, and divide them among the ranks.

- `device_loader`: stands in for the user's loader. `to_device`: the copy, also ahead of its use.
- `nesting`: walk over batches of any shape. `length_buckets`: batches of variable length.
- `sharding`: a share for each rank, agreed in `accelerate()` and iterated over without a message;
  with `samplers` (map-style data), `streams` (iterables), `comparison` (what is divided already)
  and `in_step` (as many steps on every rank in a training).
- `progress`, `random_states`: the position in a pass, which a checkpoint holds.
- `shared_memory`, `early_start`, `worker_priority`: data-loading processes that cost a step little.
- `waiting`: a batch that is lost, or a loader that stands still, ends the wait for it.
"""
