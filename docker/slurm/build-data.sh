#!/bin/sh
#SBATCH --job-name=hrm-data
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# Builds one data set on many machines, in SHARDS parts below OUT.shards on a shared file system.
#   sbatch --array=1-16 docker/slurm/build-data.sh 16 data/sudoku sudoku --train 1000000 --test 10000
#   hrm-data merge data/sudoku.shards/* --out data/sudoku
# Submit failed or killed numbers again, for example with --array=3,7; a finished shard ends at once.
set -eu
shards=$1
out=$2
shift 2
mkdir -p "$out.shards"
part="$out.shards/$SLURM_ARRAY_TASK_ID"
if [ -e "$part" ]; then exit 0; fi
exec hrm-data build "$@" --out "$part" --shard "$SLURM_ARRAY_TASK_ID/$shards" --workers "${SLURM_CPUS_PER_TASK:-1}"
