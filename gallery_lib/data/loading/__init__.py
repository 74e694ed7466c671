"""Bring batches from a DataLoader to the device, and divide them among the ranks.

- `device_loader`: stands in for the user's loader. `nesting`: walk over batches of any shape.
- `sharding`: a share for each rank, agreed in `accelerate()` and iterated over without a message;
  with `samplers`, the order of map-style data, and items of similar length together.
- `progress`, `random_states`: the position in a pass, which a checkpoint holds.
- `workers`, `shared_memory`: data-loading processes that cost a step little, and end.
"""
