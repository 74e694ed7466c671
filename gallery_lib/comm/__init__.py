"""Communication between training processes: the process group, and DistributedDataParallel.

- `process_group`: rank, world size and device of this process, from torch.distributed or from the
  variables of torchrun, srun or MPI, and which ranks share a host. `rendezvous` says where ranks
  meet: in a file on one host, else where Slurm's or Kubeflow Trainer's variables say.
- `ddp`: what `accelerate()` returns for several processes. A twin of the model has the user's type,
  names and state dict; its calls go through a DDP kept beside it. An optimizer step on gradients
  that are not averaged yet is refused.
- `accelerate_ddp`: other strategies to average the gradients of any DDP. It switches the C++
  reducer (`torch_ddp`, which alone touches torch's private API) and, where needed, registers a
  communication hook. `auto` does this to every DDP, unless it has the user's own hook.
- `reducer`: that hook. Its channels average buckets in order: a thread each, on CUDA a stream, with
  process groups of its own, and shared memory within a host.
- `wire_formats`: sums as fp32, in 16 bits, or as int8 with error feedback.
- `optimizer_in_backward`: a bucket's parameters are updated as soon as its gradients are averaged.
- `tuner`: candidates take turns over the first steps. One that is certainly faster stays.
- `heartbeat`: each rank beats in the run's store, so that an error names the silent rank.

The CUDA paths have not run on a GPU, and nothing was measured on a real network.
"""
