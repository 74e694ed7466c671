#!/bin/bash
# A training on Slurm that saves its state and goes on by itself after its time limit, a preemption or the loss of a
# node. Submit it from the checkout. Options of sbatch come before this file; a task and its options, or a script and
# its words, come behind it:
#
#     sbatch --nodes 2 --gpus-per-node 8 --cpus-per-task 64 --time 12:00:00 docs/examples/slurm.sh resnet50 --compiler-opt
#     sbatch --nodes 2 --gpus-per-node 8 --cpus-per-task 64 --time 4:00:00 docs/examples/slurm.sh train.py --data /data
#
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.out --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120

# Commands of your site, such as `module load cuda`, have their place here.

set -u
if (($# == 0)); then
    echo "error: which training? Give a task, FILE.py:NAME or a script behind $0." >&2
    exit 2
fi
python=${PYTHON:-$PWD/.venv/bin/python}
processes=${PROCESSES:-${SLURM_GPUS_ON_NODE:-1}} # on each node
run_dir=${RUN_DIR:-$PWD/runs/slurm-$SLURM_JOB_ID}
requeues=${REQUEUES:-100}
mkdir -p "$run_dir"

[[ ${SLURM_CPUS_PER_TASK:-} ]] && export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun no longer takes it from sbatch

if [[ $1 == *.py ]]; then
    # The agents of all nodes meet on the first one, at a port that is this job's own.
    head_node=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
    meeting=(--rdzv_endpoint="$head_node:$((20000 + SLURM_JOB_ID % 10000))" --rdzv_id="$SLURM_JOB_ID")
    # torchrun passes the notice on to the script, and waits so long for it to save and end.
    export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 PET_SHUTDOWN_TIMEOUT=120
    agent=("$python" -P -m gallery_lib.launcher.torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$processes"
        --rdzv_backend=c10d "${meeting[@]}" --max-restarts=0 --log-dir="$run_dir/ranks" --tee=3 "$@")
else
    # Slurm's variables tell the launcher of the other nodes.
    agent=("$python" launch_single_task.py --nproc_per_node="$processes" ${MASTER_ADDR:+--master_addr="$MASTER_ADDR"}
        --model="$1" --run_dir="$run_dir" --resume=auto --checkpoint_every=10min "${@:2}")
fi

# Slurm tells this shell two minutes before the time limit. The training saves its state and ends.
step= time_is_up=
trap 'time_is_up=yes; kill -USR1 $step' USR1
echo "$(date -Is) job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1))"
srun --output="$run_dir/slurm-%j-node%n.out" --open-mode=append "${agent[@]}" &
step=$!
code=0
wait $step || code=$?
while kill -0 $step 2>/dev/null; do
    code=0
    wait $step || code=$?
done

# The same job once more, from its last state: the training says so by exit code 75, or time was up.
if [[ $code == 75 || ($code != 0 && $time_is_up) ]]; then
    if ((${SLURM_RESTART_COUNT:-0} < requeues)); then
        scontrol requeue "$SLURM_JOB_ID" && exit 0
        echo "job $SLURM_JOB_ID could not be queued again; the reason is above." >&2
    else
        echo "job $SLURM_JOB_ID is not queued again: it was $requeues times." >&2
    fi
fi
exit $code
