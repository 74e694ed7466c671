"""Communication between training processes: the process group, and DistributedDataParallel.

- `process_group`: rank, world size and device of this process, from torch.distributed or from the
  variables of torchrun, srun or MPI. `rendezvous` says where ranks meet: a file on one host.
  `scheduler` has what the variables of Slurm and Kubeflow Trainer say.
- `ddp`: what `accelerate()` returns for several processes. A twin of the model has the user's type,
  names and state dict; its calls go through a DDP kept beside it. An optimizer step on gradients
  that are not averaged yet is refused.
- `accelerate_ddp`: other strategies to average the gradients of any DDP. It switches the C++
  reducer (`torch_ddp`, which alone touches torch's private API) and, where needed, registers a
  communication hook (`reducer`). `auto` does this to every DDP, unless it has the user's own hook.
- `channel`: a thread, on CUDA a stream, with process groups of its own that averages buckets in
  order, within a host in shared memory. `topology` says which ranks share a host.
- `wire_formats`: sums as fp32, in 16 bits, or as int8 with error feedback.
- `optimizer_in_backward`: a bucket's parameters are updated as soon as its gradients are averaged.
- `tuner`: candidates take turns over the first steps. One that is certainly faster stays.
- `heartbeat`: each rank beats in the run's store, so that an error names the silent rank.

The CUDA paths have not run on a GPU, and nothing was measured on a real network.
"""
