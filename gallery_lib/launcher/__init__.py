"""Start, watch and end the processes of a run.

- `job`: check, start, show and end a run. `run_folder`: its folder, checked and locked.
- `torchrun`: torchrun, started ahead, listening only where it is told to.
- `forked`: processes of a comparison, forked from one that has imported torch.
- `worker`: one training process. `script`: a training script of the reader's own.
- `stopped_ranks`: the watch for ranks whose process is stopped.
- `run_view`: the phase that a run is in, for who waits for it.

Where there is no GPU, training processes are forked from torchrun, which has imported torch. CUDA
does not survive a fork, so with a GPU each process starts anew.
"""
