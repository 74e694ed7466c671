"""Variants of a measurement: our backend, its peers, and a user who tunes by hand.

`recipes` makes a model ready as a variant asks. `peers` uses torch.compile, Accelerate and Fabric,
as their documentation shows them and at their best. `compile_mode` finds torch.compile's fastest
mode by measurement.
"""
