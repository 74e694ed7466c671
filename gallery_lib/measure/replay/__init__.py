"""Replay of recorded backward passes on another machine: what DDP does with them on some network.

`record` notes, in a real run of one process, when each gradient is ready. `timeline` defines the
file of such a record. `model` makes a module of it whose backward pass waits instead of computing.
It gives real gradients of the same sizes in the same order to whatever averages them. So
communication is real, and computation takes the recorded device's time.

Time may be stretched by a factor: every wait is multiplied by it, and step times are divided by it
again. The network's rate has to be divided by the same factor, which is up to whoever makes the
network. Then this machine's own work, which is not stretched, counts for less: copies of gradients,
sockets, and what goes on within a host. Figures from here are those of a time-dilated replay, and
say so.
"""
