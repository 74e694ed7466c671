"""Backward passes of one machine, replayed on another: what DistributedDataParallel would do with them on some network.

`record` notes, in a real run of one process, when each gradient is ready (`timeline`: what a file of that holds). `model` makes a
module of it whose backward pass waits instead of computing, and gives real gradients of the same sizes in the same order to
whatever averages them. So communication is real, and computation is the recorded device's.

Time may be stretched: every wait is multiplied, the network's rate has to be divided by the same factor (whoever makes the network
does that), and step times are divided by it again. Then this machine's own work, which is not stretched, counts for less: copies
of gradients, sockets, and what goes on within a host. Figures from here are those of a time-dilated replay, and say so.
"""
