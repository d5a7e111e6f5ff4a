"""How many held-out puzzles fit into the time of an export; one batch of steps is timed."""

from dataclasses import dataclass

from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.engines.engine import load_blanks, median_step_ms
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
            f"about {duration(self.estimate_s)} at most with {self.num_held_out} held-out puzzles"
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
