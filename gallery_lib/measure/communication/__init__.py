"""Measurements of gradient communication: bytes sent, gain on a slow network, and convergence.

`strategies` lets other ways of averaging gradients take turns in the same processes, and computes
what is sent. `convergence` trains on digits with every wire format, to see whether training still
learns. `launch` starts their processes, on this host or on a lab.
"""
