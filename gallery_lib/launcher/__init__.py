"""Start, watch and end the processes of a run.

- `job`: start, show and end a run. `run_folder`: its folder, checked and locked.
- `preflight`: what can be known to fail is refused before a process is started.
- `description`: the resolved options of a run, as its processes read them. `commands`: what starts
  these processes.
- `torchrun`: torchrun, listening only where it is told to.
- `forked`: processes of a comparison, forked from one that has imported torch.
- `worker`: one training process. `script`: a training script of the reader's own.
- `ranks`: the watch over the processes of ranks: who was killed, who is stopped.

Where there is no GPU, training processes are forked from torchrun, which has imported torch. CUDA
does not survive a fork, so with a GPU each process starts anew.
"""
