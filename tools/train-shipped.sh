#!/usr/bin/env bash
# Train and export a shipped model again; docs/models.md has its figures.
#
#   tools/train-shipped.sh sudoku|sudoku-hard|sudoku-hrm|sudoku-6x6|maze|logistics|logistics-6x6|
#       arc-7x7|arc-15x15|trm
#
# Data, runs and bundles go to data/, runs/ and NAME.bundle in the current folder. All models but
# sudoku-hrm were trained on one core without a GPU. Without AMX replace precision=bf16 by
# precision=fp32.
set -euo pipefail

# data/sudoku: 4,439 rated puzzles of a CSV file in the Sudoku-Extreme form and 10,400 generated ones
sudoku() {
    hrm-train sudoku-small --data data/sudoku --run runs/sudoku --hw cpu \
        --set total_samples=200000 --set high_cycles=1 --set window=8 --set max_segments=32
    hrm-train --puzzle sudoku --preset relational --data data/sudoku --run runs/sudoku2 \
        --init runs/sudoku/latest --hw cpu --set high_cycles=2 --set max_segments=32 \
        --set total_samples=120000 --set precision=fp32 --set compile=false --set lr=2e-3 \
        --set warmup_samples=6400
    hrm-export runs/sudoku2/latest --out sudoku.bundle --data data/sudoku --max-segments 128 \
        --fp16 --int8 --held-out 382 --golden 12
}

# The same rated puzzles and 3,000 hard ones; 64 channels start from the 32 of `sudoku`. INT8 was
# not measured.
sudoku-hard() {
    hrm-data build sudoku --csv-train train.csv --csv-test test.csv --train 3000 --test 0 \
        --difficulty hard --seed 61 --out data/sudoku-hard
    hard-run runs/hard1 220000 --init model/checkpoints/sudoku --set precision=fp32 --set lr=2e-3
    hard-run runs/hard2 240000 --init runs/hard1/latest --set precision=bf16 --set lr=1.5e-3
    hrm-export runs/hard2/step_3270 --out sudoku-hard.bundle --name sudoku-hard \
        --data data/sudoku-hard --max-segments 128 --fp16 --held-out 382 --golden 4
}

hard-run() {
    hrm-train --puzzle sudoku --preset relational --data data/sudoku-hard --run "$1" --hw cpu \
        --set total_samples="$2" --set hidden_size=576 --set high_cycles=2 --set max_segments=32 \
        --set compile=false --set warmup_samples=6400 "${@:3}"
}

# The published blocks, in 9 minutes of one H100, which ended after 25.3 of the 33 million samples.
# A second set has puzzles for the measurements of the export.
sudoku-hrm() {
    hrm-data build sudoku --csv-train train.csv --csv-test test.csv --train 20000 --test 0 \
        --difficulty mixed --seed 71 --out data/sudoku-hrm
    hrm-train --puzzle sudoku --preset small --data data/sudoku-hrm --run runs/sudoku-hrm \
        --set hidden_size=256 --set num_heads=8 --set max_segments=32 --set batch_size=512 \
        --set base_batch=0 --set lr=1e-3 --set lr_min_ratio=0.02 --set warmup_samples=200000 \
        --set deepening_samples=1000000 --set total_samples=33000000 --set workers=4
    in-half runs/sudoku-hrm/latest runs/sudoku-hrm-half
    hrm-data build sudoku --csv-test test.csv --train 1000 --test 2500 --difficulty mixed \
        --seed 72 --out data/sudoku-judge
    hrm-export runs/sudoku-hrm-half --out sudoku-hrm.bundle --name sudoku-hrm \
        --data data/sudoku-judge --calib data/sudoku-judge --max-segments 128 --fp16 --int8 \
        --held-out 2250 --golden 8 --budget-minutes 90
}

# Rounds a checkpoint to float16, for half the bytes.
in-half() {
    python -c 'import sys
from pathlib import Path
from hrm_model import checkpoint
model, meta = checkpoint.load(checkpoint.resolve(Path(sys.argv[1])))
checkpoint.save(Path(sys.argv[2]), model.half(), meta)' "$1" "$2"
}

sudoku-6x6() {
    hrm-data build sudoku-6x6 --out data/sudoku6 --train 8000 --test 1000 --seed 2
    hrm-train --puzzle sudoku-6x6 --preset relational --data data/sudoku6 --run runs/sudoku6 \
        --hw cpu --set precision=fp32 --set compile=false --set max_segments=16 \
        --set total_samples=120000 --set warmup_samples=12800 --set high_cycles=1 --set window=8
    hrm-export runs/sudoku6/latest --out sudoku-6x6.bundle --name sudoku-6x6 --data data/sudoku6 \
        --max-segments 16 --fp16 --int8 --held-out 800
}

# test.csv holds the held-out mazes of 30x30
maze() {
    hrm-data build maze-10x10 --out data/maze10 --train 12000 --test 300 --seed 11
    hrm-data build maze-20x20 --out data/maze20 --train 8000 --test 200 --seed 12
    hrm-train maze-small --data data/maze10 --run runs/maze1 --hw cpu \
        --set precision=bf16 --set warmup_samples=6400
    hrm-train --puzzle maze-20x20 --preset relational --data data/maze20 --run runs/maze2 \
        --init runs/maze1/latest --hw cpu --set window=2 --set total_samples=160000 \
        --set precision=bf16 --set compile=false --set warmup_samples=3200 --set lr=2e-3 \
        --set max_segments=40
    hrm-data build maze --out data/maze30 --train 2500 --csv-test test.csv --seed 13
    hrm-data build maze-14x14 --out data/maze14 --train 8 --test 300 --seed 22
    hrm-data build maze-8x8 --out data/maze8 --train 8 --test 600 --seed 21
    hrm-export runs/maze2/latest --board 30x30 --out maze.bundle --name maze --data data/maze30 \
        --max-segments 80 --fp16 --int8 --calib maze
    hrm-export runs/maze2/latest --board 14x14 --out maze-14x14.bundle --name maze-14x14 \
        --data data/maze14 --max-segments 32 --fp16 --int8 --calib maze
    hrm-export runs/maze2/latest --board 8x8 --out maze-8x8.bundle --name maze-8x8 \
        --data data/maze8 --max-segments 24 --fp16 --int8 --calib maze
}

# The shipped weights of runs/wide3 were widened by a script with the arithmetic of --init.
logistics() {
    hrm-data build logistics --out data/city2 --train 40000 --test 400 --seed 3
    hrm-train --puzzle logistics --preset relational --data data/city2 --run runs/wide1 --hw cpu \
        --set hidden_size=64 --set max_segments=24 --set total_samples=800000 \
        --set precision=bf16 --set compile=false --set lr=2e-3 --set warmup_samples=12800
    hrm-train --puzzle logistics --preset relational --data data/city2 --run runs/wide2 \
        --init runs/wide1/latest --hw cpu --set max_segments=24 --set total_samples=240000 \
        --set precision=bf16 --set compile=false --set lr=1e-3 --set warmup_samples=6400
    hrm-train --puzzle logistics --preset relational --data data/city2 --run runs/wide3 \
        --init runs/wide2/latest --hw cpu --set hidden_size=76 --set max_segments=24 \
        --set total_samples=1300000 --set precision=bf16 --set compile=false --set lr=1.5e-3 \
        --set warmup_samples=12800
    hrm-export runs/wide3/latest --out logistics.bundle --data data/city2 --max-segments 24 \
        --fp16 --int8 --calib logistics --golden 4
}

logistics-6x6() {
    hrm-data build logistics --out data/city1 --train 8000 --test 400 --seed 3
    hrm-data build logistics --out data/city2 --train 40000 --test 400 --seed 3
    hrm-data build logistics-6x6 --out data/city6 --train 12000 --test 400 --seed 5
    hrm-train --puzzle logistics --preset relational --data data/city1 --run runs/city1 --hw cpu \
        --set total_samples=100000
    hrm-train --puzzle logistics --preset relational --data data/city2 --run runs/city2 \
        --init runs/city1/latest --hw cpu --set total_samples=300000
    hrm-train --puzzle logistics --preset relational --data data/city2 --run runs/city3 \
        --init runs/city2/latest --hw cpu --set total_samples=280000 --set warmup_samples=6400
    hrm-train --puzzle logistics-6x6 --preset relational --data data/city6 --run runs/city4 \
        --init runs/city3/latest --hw cpu --set max_segments=16 --set total_samples=160000 \
        --set warmup_samples=6400 --set lr=2e-3
    hrm-export runs/city4/latest --out logistics-6x6.bundle --data data/city6 --max-segments 16 \
        --fp16 --int8 --calib logistics
}

# RE_ARC is the folder of RE-ARC's examples and license. The first two runs were stopped after
# 400,000 and 200,000 samples.
arc-7x7() {
    hrm-data build arc-7x7 --out data/arc7 --augment 7 --keep-colors --hold-out-all \
        --more "$RE_ARC/examples.json.gz" --more-license "$RE_ARC/LICENSE-RE-ARC.txt"
    arc-run runs/arc1 2000000
    arc-run runs/arc2 700000 --init runs/arc1/latest
    arc-run runs/arc3 420000 --init runs/arc2/latest
    hrm-export runs/arc3/latest --out arc-7x7.bundle --data data/arc7 --calib arc \
        --fp16 --int8 --max-segments 1
}

arc-run() {
    hrm-train arc-small --data data/arc7 --hw cpu --set hidden_size=480 \
        --set precision=bf16 --run "$1" --set total_samples="$2" "${@:3}"
}

# 15x15 goes on from the last checkpoint of 10x10, which was stopped after 773,000 samples.
arc-15x15() {
    large-arc-run 10x10 1000000 --init model/checkpoints/arc-7x7
    large-arc-run 15x15 300000 --init runs/arc-10x10/latest --set lr=3e-3
    in-half runs/arc-15x15/latest runs/arc-15x15-half
    hrm-export runs/arc-15x15-half --out arc-15x15.bundle --name arc-15x15 \
        --data data/arc-15x15 --calib arc --fp16 --policy fixed --max-segments 2
}

large-arc-run() {
    hrm-data build "arc-$1" --out "data/arc-$1" --augment 7 --keep-colors --hold-out-all \
        --more "$RE_ARC/examples.json.gz" --more-license "$RE_ARC/LICENSE-RE-ARC.txt"
    hrm-train arc-small --puzzle "arc-$1" --data "data/arc-$1" --run "runs/arc-$1" \
        --hw cpu --threads 1 --set hidden_size=480 --set puzzle_vector_size=96 \
        --set precision=bf16 --set total_samples="$2" "${@:3}"
}

# The TRM of the comparison; for 9x9, warmup_samples=4000 and total_samples=50000
trm() {
    hrm-train --puzzle sudoku-6x6 --preset trm --data data/sudoku6 --run runs/trm --hw cpu \
        --set blocks=mixer --set positions=none --set hidden_size=64 --set num_heads=2 \
        --set expansion=2 --set puzzle_vector_size=64 --set puzzle_positions=4 \
        --set high_cycles=1 --set low_cycles=3 --set high_layers=1 --set low_layers=1 \
        --set base_batch=0 --set batch_size=32 --set window=4 --set lr=2e-3 --set puzzle_lr=2e-3 \
        --set lr_min_ratio=0.02 --set clip_norm=1 --set average_decay=0.998 --set loss=softmax \
        --set precision=fp32 --set compile=false --set warmup_samples=5000 \
        --set total_samples=100000
}

case "${1-}" in
maze-14x14 | maze-8x8) maze ;;
sudoku | sudoku-hard | sudoku-hrm | sudoku-6x6 | maze | logistics | logistics-6x6 | arc-7x7 | \
    arc-15x15 | trm) "$1" ;;
*)
    echo "name a model, for example tools/train-shipped.sh maze" >&2
    exit 2
    ;;
esac
