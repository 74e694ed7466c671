"""Bring batches from a DataLoader to the device, and divide them among the ranks.

- `device_loader`: stands in for the user's loader. `nesting`: walk over batches of any shape.
- `sharding`: a `share` for each rank, with `agreed_order` (map-style data), `streams` (iterables),
  `rank_samplers` and `digests` (loaders that are divided already), `loader_copy` (subclasses) and
  `in_step` (as many batches on every rank).
- `padding`, `length_buckets`, `length`: batches of variable length.
- `epochs`: `set_epoch` for the user. `item_random`: random numbers by seed, epoch and index.
- `shared_memory`, `early_start`, `worker_priority`: data-loading processes that cost a step little.
"""
