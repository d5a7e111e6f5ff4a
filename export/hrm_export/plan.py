"""How much of an export fits into its time: the first seconds time a segment of every form, and the sizes follow.

Puzzles are given up before segments, since a loss under the halting rule needs the segments that the rule may run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hrm_calibration.int8 import Int8Settings, for_cpus
from hrm_calibration.kept import Arrays
from hrm_calibration.quantise import call_sites
from hrm_calibration.rollouts import MAX_STATES, ServedGraph
from hrm_edge_runtime.engines.engine import load_blanks, median_step_ms
from hrm_edge_runtime.parity.measures import loss_interval
from hrm_export.forms import NUM_RANGE_PUZZLES, float32_nodes, half_graph
from hrm_export.options import Options
from hrm_host.progress import duration

MIN_HELD_OUT = 24
"""Fewer puzzles tell too little: then fewer segments are run instead."""
CANDIDATES, FEW_CANDIDATES, FEW_GOLDEN = 16, 2, 4
"""Puzzles tried for each golden trace, since not every one survives rounding; and what is enough in little time."""
GOLDEN, TRIALS, RECORDED, RANKED, REPORTED = 8, 3, 2.0, 40, 18
"""Forecasts: of a golden trace in runs of float32 (two candidates, float64, recording, replays); of the search for
weight-only matrices in runs over all puzzles to choose by; of recording in runs of float32; of ranking in segments of a
state; of the report in segments."""
SHARE = 0.85
"""Of the time, since a forecast may err; the rest is for graphs, files and puzzles."""
LONG_S = 60.0
"""An export that takes as long says what it will do; a shorter one just does it."""
DIFFERING = 0.02
"""Share of puzzles on which two forms differ, for the width of the interval before anything is measured."""
TIMED_S = 0.25


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """Puzzles and segments that fit, and the seconds each stage will take at most; `is_cut` where not all fits."""

    num_held_out: int
    num_segments: int
    num_golden: int
    num_candidates: int
    settings: Int8Settings
    forecast_s: Mapping[str, float]
    is_cut: bool

    @property
    def seconds(self) -> float:
        return sum(self.forecast_s.values())

    def settings_at(self, share: float) -> Int8Settings:
        """The puzzles to choose by where only this share of the segments runs before puzzles halt."""
        if not self.is_cut:
            return self.settings
        tried, choice = (int(few / share) for few in (self.settings.num_tried, self.settings.num_choice))
        tried, choice = min(tried, Int8Settings.num_tried), min(choice, Int8Settings.num_choice)
        return replace(self.settings, num_tried=tried, num_choice=choice)

    def sentence(self) -> str:
        stages = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in self.forecast_s.items())
        differing = round(DIFFERING * self.num_held_out / 2)
        low, high = loss_interval(differing, differing, self.num_held_out)
        return (
            f"at most about {duration(self.seconds)} ({stages}): {self.num_held_out} held-out "
            f"puzzles through {self.num_segments} segments, which tell a loss to about ±{50 * (high - low):.1f} points "
            f"at 95 %{'; --budget-minutes buys more' if self.is_cut else ''}"
        )


def plan_for(served: ServedGraph, options: Options) -> ExportPlan:
    """Times a segment of every form, unless that is kept, and gives up puzzles, then segments, until all fits."""
    found = served.kept.arrays("timing", lambda: _timed(served, options))
    times_s = {name: float(seconds[0]) for name, seconds in found.items()}
    allowed_s, limit = SHARE * 60 * options.budget_minutes, served.policy.max_segments
    plan = _plan(options, times_s, options.held_out, limit, is_cut=False)
    num_held_out, num_segments = options.held_out, limit + (options.held_out <= MIN_HELD_OUT)
    while plan.seconds > allowed_s and num_segments > 1:
        if num_held_out > MIN_HELD_OUT:
            num_held_out = max(MIN_HELD_OUT, int(0.95 * num_held_out))
        else:
            num_segments -= 1
        plan = _plan(options, times_s, num_held_out, num_segments, is_cut=True)
    return plan


def _timed(served: ServedGraph, options: Options) -> Arrays:
    """Seconds of one puzzle's segment in each form asked for.

    The lower precisions are stand-ins, since their ranges are not known yet: they cost the same.
    """
    graph, times_s = served.graph, dict[str, NDArray[np.float64]]()
    graphs = {"fp32": graph}
    if options.fp16:
        graphs["fp16"] = half_graph(graph, float32_nodes(graph, {}))
    if options.int8:
        graphs["int8"] = for_cpus(graph, {site.name: 1.0 for site in call_sites(graph)}, ())
    for name, form in graphs.items():
        with served.engine(form) as engine:
            load_blanks(engine, served.puzzle_table[0])
            batch_ms = median_step_ms(engine, engine.num_slots, seconds=TIMED_S, min_steps=1)
            times_s[name] = np.array([batch_ms / 1e3 / engine.num_slots])
    return times_s


def _plan(
    options: Options, times_s: Mapping[str, float], num_held_out: int, num_segments: int, *, is_cut: bool
) -> ExportPlan:
    settings, num_golden, candidates = Int8Settings(), options.golden, CANDIDATES
    if is_cut:
        num_golden, candidates = min(num_golden, FEW_GOLDEN), FEW_CANDIDATES
        tried, choice, few = (max(4, num_held_out // share) for share in (4, 2, 8))
        settings = Int8Settings(num_calibration=min(few, NUM_RANGE_PUZZLES), num_tried=tried, num_choice=choice)
    puzzle_s = {name: num_segments * seconds for name, seconds in times_s.items()}
    recorded_s = RECORDED * settings.num_calibration * puzzle_s["fp32"]
    forecast_s = {"fp32": num_held_out * puzzle_s["fp32"], "golden traces": GOLDEN * num_golden * puzzle_s["fp32"]}
    forecast_s["further attempts"] = 8 * min(32, settings.num_tried) * puzzle_s["fp32"]
    if options.fp16:
        forecast_s["fp16"] = (num_held_out + num_golden) * puzzle_s["fp16"] + recorded_s
    if options.int8:
        num_choice = min(settings.num_choice, 2 * num_held_out)
        ranked = RANKED * min(settings.num_calibration, MAX_STATES)
        num_runs = len(settings.methods) * min(settings.num_tried, num_choice) + TRIALS * num_choice + num_held_out
        chosen_s = num_choice * puzzle_s["fp32"] + num_runs * puzzle_s["int8"] + ranked * times_s["int8"]
        forecast_s["int8"] = chosen_s + recorded_s + 3 * num_golden * puzzle_s["fp32"]
    return ExportPlan(
        num_held_out=num_held_out,
        num_segments=num_segments,
        num_golden=num_golden,
        num_candidates=min(candidates * num_golden, num_held_out),
        settings=settings,
        forecast_s={**forecast_s, "report": REPORTED * sum(times_s.values())},
        is_cut=is_cut,
    )
