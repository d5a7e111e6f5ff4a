"""How many held-out puzzles fit into the time of an export, and how long it takes.

At first one batch of steps is timed. This gives an upper bound: every puzzle runs all segments.
Once float32 is measured, `seconds_left` knows its speed and when puzzles halt.
"""

from dataclasses import dataclass

import numpy as np

from hrm_calibration.int8 import MAX_PUZZLES
from hrm_calibration.quantize import call_sites
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.engines.engine import load_blanks, median_step_ms
from hrm_export.attempts import NUM_ATTEMPTS, NUM_PUZZLES
from hrm_export.forms import Measured
from hrm_export.options import Options
from hrm_host.progress import duration

MIN_HELD_OUT = 24
"""Fewer puzzles say too little about a loss, so an export measures them even if it takes longer."""
FP32_RUNS = 3.0
"""Runs of a held-out puzzle in float32: measuring, golden traces and further attempts."""
FP16_RUNS = 2.0
"""Runs more for float16: recording its ranges and measuring."""
INT8_RUNS = 12.0
"""Runs more for INT8: calibration tries five methods, then weight-only matrices."""
TIMED_S = 0.25
LONG_S = 60.0
"""A shorter export starts without an estimate."""


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    num_held_out: int
    estimate_s: float

    @property
    def sentence(self) -> str:
        return (
            f"at most about {duration(self.estimate_s)} with {self.num_held_out} held-out puzzles"
        )


def plan_export(served: ServedGraph, options: Options) -> ExportPlan:
    """Halve the held-out puzzles until the estimate fits into `--budget-minutes`.

    Halving makes two exports on one machine choose the same number although their timings differ.
    """
    puzzle_s = seconds_per_puzzle(served, options)
    budget_s = 60 * options.budget_minutes
    num_held_out = options.held_out
    while num_held_out * puzzle_s > budget_s and num_held_out > MIN_HELD_OUT:
        num_held_out = max(MIN_HELD_OUT, num_held_out // 2)
    return ExportPlan(num_held_out=num_held_out, estimate_s=num_held_out * puzzle_s)


def seconds_per_puzzle(served: ServedGraph, options: Options) -> float:
    """Estimated time that an export spends on one held-out puzzle in all its forms."""
    num_runs = FP32_RUNS
    if options.fp16:
        num_runs += FP16_RUNS
    if options.int8:
        num_runs += INT8_RUNS
    return num_runs * seconds_per_attempt(served)


def seconds_per_attempt(served: ServedGraph, num_slots: int | None = None) -> float:
    """Estimated time of one attempt at a puzzle through all segments, in a full batch."""
    with served.engine(served.graph, num_slots=num_slots) as engine:
        load_blanks(engine, served.puzzle_table[0])
        batch = engine.num_slots
        batch_ms = median_step_ms(engine, batch, seconds=TIMED_S, min_steps=1)
    segment_s = batch_ms / 1000 / batch
    return served.policy.max_segments * segment_s


# Costs beside the held-out puzzles, measured in CPU seconds on 6x6 Sudoku (44,930 values).
GOLDEN_RUNS = 8.0
"""Runs of all segments for each golden trace: PyTorch in two precisions."""
LANE = 1.5
"""A puzzle that halts in a lane, against its share of a run of all segments."""
NUM_RANGE_PUZZLES = 64
"""Puzzles that record the ranges for float16."""
RECORDING = 5.0
"""A recorded puzzle, against one that only runs."""
LOWER = 1.15
"""A precision below float32, against float32."""
WEIGHT_ONLY_STEPS = 2
"""Matrices that become weight-only before the budget is kept."""
RANK_S = 0.03
"""Seconds to rank a matrix."""


def seconds_left(
    measured: Measured,
    measured_s: float,
    served: ServedGraph,
    num_calibration: int,
    options: Options,
) -> float:
    """Estimated time of an export after float32 took `measured_s` for the held-out puzzles."""
    score = measured.score
    run_s = measured_s / score.num_puzzles
    share = score.mean_segments / measured.rollout.num_segments
    halting_s = LANE * share * run_s
    num_unproven = min(NUM_PUZZLES, np.count_nonzero(~measured.outcomes.proven_N))
    num_runs = GOLDEN_RUNS * options.golden
    if served.puzzle.proof_exists:
        num_runs += 2 * NUM_ATTEMPTS * num_unproven
    seconds = num_runs * run_s
    if options.lower_precisions:
        seconds += RECORDING * NUM_RANGE_PUZZLES * halting_s
    seconds += LOWER * len(options.lower_precisions) * measured_s
    if options.int8:
        seconds += _calibrating_puzzles(num_calibration) * halting_s
        matrices = {site.weight for site in call_sites(served.graph)}
        seconds += RANK_S * len(matrices)
    return seconds


def _calibrating_puzzles(num_calibration: int) -> float:
    """Puzzles that a calibration runs until they halt; a recorded one counts several times."""
    num_puzzles = min(MAX_PUZZLES, num_calibration)
    return (RECORDING + LOWER * (1 + WEIGHT_ONLY_STEPS)) * num_puzzles
