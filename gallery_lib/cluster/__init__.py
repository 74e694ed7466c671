"""Several hosts on one machine: network namespaces joined by a bridge, with shaped links and CPU shares of their own.

    from gallery_lib.cluster.lab import Lab

    with Lab(hosts=2, rate="1gbit") as lab:
        process = lab.popen(0, ["python", "train.py"])

`gallery lab up` makes one that stays until `gallery lab down`. Everything in it is real (processes, sockets, queues)
but the wires, and hosts share the cores and the memory of the machine: figures from here are those of an emulated link.

How it is held together: one process, the keeper, holds every namespace open; nothing has a name on the machine, and no
mount is made. Without it the namespaces, and the links in them, are gone as soon as the processes in them are. What is in
a lab's namespaces is known by its mark: a network device that no other namespace has.
"""

from gallery_lib.cluster.lab import Lab
from gallery_lib.cluster.requirements import LabUnavailable

__all__ = ["Lab", "LabUnavailable"]
