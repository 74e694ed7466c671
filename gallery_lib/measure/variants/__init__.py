"""Variants of a measurement: our backend, its peers, and a user who tunes by hand.

`forms` names the variants: each peer as its documentation shows it and at its best. `recipes` makes
a model ready as a variant asks; `peers` uses torch.compile, Accelerate and Fabric; `by_hand` adds a
fused optimizer, channels_last and allocator settings; `compile_mode` finds torch.compile's fastest
mode by measurement.
"""
