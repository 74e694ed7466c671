"""A training handed to a scheduler, which starts it, ends it, and starts it again.

- `program`: what is to run, a task or a script of one's own, and whether its options are right.
- `batch_file`: the text of Slurm's batch file.
- `slurm`: sbatch and squeue, as this machine has them.
- `train_job`: Kubeflow Trainer's TrainJob, of its own typed models.
- `kubernetes`: hands a TrainJob to a cluster.

Nothing is queued before every option has been checked here. On the hosts of a job the ranks find
each other by `comm.scheduler`.
"""
