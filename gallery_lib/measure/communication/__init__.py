"""Measurements of gradient communication: gain on a slow network, and convergence.

`strategies` lets other ways of averaging gradients take turns in the same processes. `convergence`
learns digits with every wire format. `launch` starts their processes, on this host or on a lab.
"""
