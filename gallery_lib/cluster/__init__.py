"""Emulated cluster: several hosts on one machine, with shaped links and CPU shares of their own.

Hosts are network namespaces joined by a bridge. `gallery lab up` makes a lab that stays until
`gallery lab down`. Everything in it is real (processes, sockets, queues) except the wires. Hosts
share the cores and the memory of the machine, so figures from here are those of an emulated link.

One process, the keeper, holds every namespace open. Nothing has a name on the machine, and no mount
is made. Without the keeper the namespaces and their links are gone as soon as the processes in them
are. A lab's namespaces are recognized by a mark: a network device that no other namespace has.
"""

from gallery_lib.cluster.lab import Lab
from gallery_lib.cluster.network import LabUnavailable

__all__ = ["Lab", "LabUnavailable"]
