"""Start, watch and end the processes of a run.

- `job`: start, show and end a run. `run_folder`: its folder, checked and locked.
- `preflight`: what can be known to fail is refused before a process is started.
- `commands`: what starts the processes, which find the run in a file (`train/resolved.py`).
- `torchrun`: torchrun, listening only where it is told to.
- `forked`: processes forked from one that has imported torch, and the watch over ranks.
- `worker`: one training process. `script`: a training script of the reader's own.

Where there is no GPU, training processes are forked from torchrun, which has imported torch. CUDA
does not survive a fork, so with a GPU each process starts anew.
"""
