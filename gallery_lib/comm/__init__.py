"""Communication between training processes: the process group, and DistributedDataParallel."""
