#!/bin/bash
# A recipe on many machines under Slurm, requeued and resumed until it is done:
#
#   sbatch --nodes 80 recipes/launch/slurm.sh recipes/pretrain-qwen3-0.6b-c4.yaml [flags of `decondense train`]
#
# Submit from the repository (or set CONFIG). What to set for another cluster, in the environment:
#   OUT       run folder, default runs/NAME-OF-RECIPE; on a file system that every machine sees
#   CONFIG    accelerate configuration, default recipes/launch/fsdp2-multi-node.yaml
#   GPUS      GPUs per machine, default what Slurm gave this job
#   SETUP     a line to run on every machine first, e.g. "source .venv/bin/activate"
#
# Five minutes before the time limit the job puts itself back into the queue; Slurm does so when a machine fails. A job
# that finds its run folder continues from the last complete checkpoint, so at most the steps since then are repeated:
# choose train.checkpoints accordingly. A run that fails by itself is not requeued: it would fail again.
#SBATCH --job-name=decondense
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --output=%x-%j.log
set -euo pipefail

recipe=${1:?"usage: sbatch recipes/launch/slurm.sh RECIPE.yaml [flags of decondense train]"}
shift
export OUT=${OUT:-runs/$(basename "$recipe" .yaml)}
export CONFIG=${CONFIG:-recipes/launch/fsdp2-multi-node.yaml}
export GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:-8}}
export SETUP=${SETUP:-:}
export HEAD PORT
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST") # not "| head": that breaks the pipe of a long list
HEAD=${nodes[0]}
PORT=$((20000 + SLURM_JOB_ID % 20000)) # jobs that share a machine do not meet

flags=("$@")
if [[ -e $OUT/recipe.yaml ]]; then # an earlier attempt got as far as training
    flags+=(--resume)
fi

# One task per machine; accelerate starts the processes on it. $SLURM_NODEID is known only there, hence the quotes.
run_everywhere() {
    # srun does not inherit --cpus-per-task (since Slurm 22.05): a task would have one core.
    exec srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} bash -c '
        set -euo pipefail
        eval "$SETUP"
        exec accelerate launch --config_file "$CONFIG" \
            --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * GPUS))" \
            --machine_rank "$SLURM_NODEID" --main_process_ip "$HEAD" --main_process_port "$PORT" \
            -m decondense.cli train "$@"' launch "$recipe" --out "$OUT" "${flags[@]}"
}

requeue() {
    trap - USR1
    echo "time is nearly up: back into the queue, to be resumed from the last complete checkpoint"
    kill -TERM "$step" 2>/dev/null || true
    wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

trap requeue USR1
run_everywhere &
step=$!
wait "$step"
