#!/bin/sh
#SBATCH --job-name=hrm-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# Trains one run on all nodes of the job; RUN and the data are on a shared file system.
#   sbatch docker/slurm/train.sh RUN --puzzle sudoku --data data/sudoku
# A killed rank or a requeued job continues from the latest checkpoint. RANKS is the number of ranks on each node.
set -eu
run=$1
shift
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if [ -e "$run/run.json" ]; then set -- "$@" --resume; fi
# A store of its own for each start; without it new ranks would look for dead ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec srun torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${RANKS:-${SLURM_GPUS_ON_NODE:-1}}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:${PORT:-29400}" --no-python -- hrm-train --run "$run" "$@"
