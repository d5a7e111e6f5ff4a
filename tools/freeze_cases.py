"""The inputs of the freeze: puzzles, a training, an export, and what must be rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUZZLES_FILE = Path(__file__).parent / "puzzles.json"
PUZZLES: dict[str, list[Any]] = json.loads(PUZZLES_FILE.read_text(encoding="utf-8"))
SERVED = list(PUZZLES)  # each kind of puzzle is solved by the shipped bundle of that name
SIX = "sudoku-6x6"
SUDOKU: str = PUZZLES[SIX][0]
CLASHING = "11" + "." * 34

DATA: dict[str, str] = {
    "sudoku-4x4": "--train 200 --test 40",  # the training reads it
    SIX: "--train 24 --test 12",
    "maze-8x8": "--train 24 --test 12",
    "logistics-6x6": "--train 24 --test 12",
}
"""Options of `hrm-data build`, by puzzle."""

# A checkpoint at every step, because each checkpoint makes a line of metrics.
# 3,200 samples in batches of 16 are 200 steps.
TRAINING = (
    "--puzzle sudoku-4x4 --data data/sudoku-4x4 --run run --hw cpu --validation-puzzles 20 "
    "--checkpoint-steps 1 --keep 1 --set compile=false --set seed=7 --set window=1 "
    "--set batch_size=16 --set total_samples=3200"
)
EXPORT = (
    "checkpoint --out exported.bundle --fp16 --int8 --calib sudoku --held-out 24 "
    "--max-loss 100 --golden 4 --max-segments 8"
)

PARITY = "--engine cpu:fp32 --threads 1 --json"

REFUSED_EXPORTS = {
    "no checkpoint": "",
    "no checkpoint, but puzzles": "--calib sudoku",
    "missing directory": "nowhere --out x.bundle",
    "no weights": "no-weights --out x.bundle",
    "no configuration": "no-config --out x.bundle",
    "cut weights": "cut-weights --out x.bundle",
    "unknown field": "unknown-field --out x.bundle",
    "no puzzle": "no-puzzle --out x.bundle",
    "another puzzle": "another-puzzle --out x.bundle",
    "no number": "checkpoint --max-loss little",
    "a loss that no precision keeps": (
        "checkpoint --out x.bundle --fp16 --max-loss -100 --held-out 24 --max-segments 4"
    ),
    "unknown puzzles": "checkpoint --out x.bundle --int8 --calib chess",
    "puzzles of another kind": "checkpoint --out x.bundle --int8 --calib maze",
    "unknown loop": "checkpoint --out x.bundle --loop sideways",
    "unknown policy": "checkpoint --out x.bundle --policy never --held-out 4",
    "report without INT8": "checkpoint --out x.bundle --report report",
    "something is there": "checkpoint --out checkpoint",
    "no data set": "checkpoint --out x.bundle --data nowhere",
    "nothing held out": "checkpoint --out x.bundle --held-out 0",
}
"""Arguments of `hrm-export`; the freeze makes the damaged checkpoints."""

REFUSED_COMMANDS = (
    "hrm nothing",
    "hrm demo chess",
    "hrm models nowhere",
    f"hrm-solve {CLASHING} --bundle sudoku-6x6",
    "hrm-solve 12 --bundle sudoku-6x6",
    "hrm-solve nowhere.txt --bundle sudoku-6x6",
    f"hrm-solve {SUDOKU} --bundle nowhere",
    f"hrm-solve {SUDOKU} --url http://127.0.0.1:9 --patience 0",
    "hrm-serve nowhere",
    "hrm-serve sudoku-6x6 --port 70000",
    "hrm-serve sudoku-6x6 --slots few",
    "hrm-serve sudoku-6x6 --memory-budget lots",
    "hrm-serve sudoku-6x6 --memory-budget 1KiB",
    "hrm-serve sudoku-6x6 --host 0.0.0.0",
    "hrm-serve sudoku-6x6 --keys nowhere",
    "hrm-serve sudoku-6x6 --engine magic",
    "hrm-serve sudoku-6x6 sudoku-6x6",
    "hrm-key remove nobody --file nowhere",
    "hrm-data build chess --out x",
    "hrm-data build sudoku-4x4 --out x --train none",
    "hrm-data inspect nowhere",
    "hrm-data import nowhere sudoku --out x",
    "hrm-train --puzzle chess",
    "hrm-train --resume --run nowhere",
    "hrm-train --puzzle sudoku-4x4 --set colour=red",
    "hrm-train status nowhere",
    "hrm-import nowhere --out x",
    "hrm-eval nowhere --data nowhere",
    "hrm-calibrate int8 nowhere --calib sudoku --out x",
    "hrm-parity nowhere",
    "hrm-parity sudoku-6x6 --engine magic",
    "hrm-bench serve --bundle nowhere",
    "hrm-bench compare --puzzle chess",
)

JSON_TYPE = {"content-type": "application/json"}
LINES_TYPE = {"content-type": "application/x-ndjson"}
ELSEWHERE = {"origin": "http://elsewhere.test"}
DOUBLED = b'{"puzzle": 1, "puzzle": 2}'
REFUSED_SOLVES: dict[str, dict[str, Any]] = {
    "no JSON": {"content": b"{", "headers": JSON_TYPE},
    "another type": {"content": b"x", "headers": {"content-type": "text/plain"}},
    "no object": {"json": [1]},
    "no puzzle": {"json": {}},
    "unknown field": {"json": {"puzzle": SUDOKU, "colour": "red"}},
    "doubled field": {"content": DOUBLED, "headers": JSON_TYPE},
    "unknown kind": {"json": {"puzzle": SUDOKU, "kind": "chess"}},
    "unknown model": {"json": {"puzzle": SUDOKU, "model": "deep-thought"}},
    "wrong length": {"json": {"puzzle": "12", "kind": SIX}},
    "a digit twice": {"json": {"puzzle": CLASHING, "kind": SIX}},
    "wrong character": {"json": {"puzzle": "x" + "." * 35, "kind": SIX}},
    "any notation": {"json": {"puzzle": {"a": 1}}},
    "no segments": {"json": {"puzzle": SUDOKU, "max_segments": 0}},
    "too many attempts": {"json": {"puzzle": SUDOKU, "attempts": 1000}},
    "unknown policy": {"json": {"puzzle": SUDOKU, "policy": "never"}},
    "too large": {"json": {"puzzle": "." * 70_000}},
    "another page": {"json": {"puzzle": SUDOKU}, "headers": ELSEWHERE},
}
"""Bodies of `POST /solve`, as httpx takes them."""

REFUSED_REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "stream of nothing": ("POST", "/solve/stream", {"json": {}}),
    "unknown order": ("POST", "/solve/batch?order=random", {"content": b"", "headers": LINES_TYPE}),
    "unknown path": ("GET", "/nothing", {}),
    "another method": ("GET", "/solve", {}),
    "no admin removes": ("DELETE", "/models/nothing", {}),
    "no admin adds": ("PUT", "/models/new", {"json": {"bundle": "new.bundle"}}),
    "unknown puzzle kind": ("GET", "/puzzle?kind=chess", {}),
    "unknown model's tasks": ("GET", "/models/nothing/tasks", {}),
}
