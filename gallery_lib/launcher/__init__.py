"""Start, watch and end the processes of a run.

- `job`: start, show and end a run, whose processes find it in a file (`train/resolved.py`).
- `preflight`: what can be known to fail is refused before a process is started; the run's folder.
- `forked`: the processes of one host, forked from one that has imported torch.
- `torchrun`: the processes of several hosts, which listen only where they are told to.
- `worker`: one training process. `script`: a training script of the reader's own.
"""
