"""Data sets as real files, and how their batches come to the device.

A folder for each kind of data, with generators of mock data, the data sets that read it or the user's own, and checks
of real folders. For all of them: `mock_folder` (made whole or not at all), `length_buckets`, `padding`, `nesting`,
`sharding` (with `agreed_order`, `streams`, `rank_samplers`, `loader_copy`, `digests`), `epochs`, `shared_batches`,
`early_workers`, `background_workers` and `device_loader`. Nothing here downloads anything.
"""
