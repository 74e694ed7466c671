"""Start, watch and end the processes of a run.

- `job`: start, show and end a run (its file: `train/resolved.py`), or a script of the reader's own.
- `preflight`: what can be known to fail is refused before a process is started; the run's folder.
- `torchrun`: torchrun, which listens only where it is told to, and forks the ranks of one host.
- `forked`: the same without torchrun, for comparisons, whose start-up is measured.
- `worker`: one training process.
"""
