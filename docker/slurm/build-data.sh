#!/bin/sh
#SBATCH --job-name=hrm-data
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# Builds one data set on one machine, at OUT on a shared file system.
#   sbatch docker/slurm/build-data.sh data/sudoku sudoku --train 1000000 --test 10000
# A requeued job continues; it ends at once if OUT exists.
set -eu
out=$1
shift
if [ -e "$out" ]; then exit 0; fi
exec hrm-data build "$@" --out "$out" --workers "${SLURM_CPUS_PER_TASK:-1}"
