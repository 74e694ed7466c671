"""Bring batches from a DataLoader to the device, and divide them among the ranks.

- `device_loader`: stands in for the user's loader. `nesting`: walk over batches of any shape.
- `sharding`: a share for each rank, agreed in `accelerate()` and iterated over without a message;
  with `agreed_order` (map-style data), `streams` (iterables), `rank_samplers` and `digests`
  (loaders that are divided already), `trial` (a look at them in a forked process), `loader_copy`
  (subclasses) and `in_step` (as many steps on every rank in a training).
- `refilled`: batches whose memory may be filled again.
- `padding`, `length_buckets`, `length`: batches of variable length.
- `item_random`: random numbers by seed, epoch and index.
- `shared_memory`, `early_start`, `worker_priority`: data-loading processes that cost a step little.
- `waiting`: a batch that is lost, or a loader that stands still, ends the wait for it.
"""
