"""From a bundle to a lane that is ready: its slots chosen, its engine warm, its memory measured against the budget."""

from __future__ import annotations

import gc

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.batching.sizing import Sizing, sizing_from
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.factory import engine_for
from hrm_edge_runtime.worker.lanes import LaneOptions, OpenedLane
from hrm_edge_runtime.worker.memory_budget import Meter
from hrm_edge_runtime.worker.reports import LaneReport
from hrm_edge_runtime.worker.step_times import Curve, StepTimesFile, measure, warm_up
from hrm_host import memory


def open_lane(options: LaneOptions, meter: Meter, *, keeps_figures: bool = True) -> OpenedLane:
    """Open a bundle on its engine; raises BundleError, EngineUnavailableError or OverBudgetError, and holds nothing.

    What it takes is measured once it has run its largest step. Before it is loaded, the size of its graph must fit,
    which is the least it can take, and what a lane of it was seen to take before.
    """
    bundle = Bundle.open(options.bundle_path)
    name, figures = bundle.manifest.name, StepTimesFile(bundle, options.choice, options.num_threads)
    meter.check(name, _graph_bytes(bundle, options))
    curve = figures.curve()
    if not curve and not options.num_slots:
        curve = _measured(bundle, options)
        if keeps_figures:
            figures.keep_curve(curve)
    sizing = Sizing(num_slots=options.num_slots, rule="given") if options.num_slots else sizing_from(curve)
    meter.check(name, figures.memory_bytes(sizing.num_slots))
    before_bytes = meter.held_bytes()
    lane = _checked(_lane(bundle, options, sizing.num_slots), name, meter)
    memory_bytes = max(0, meter.held_bytes() - before_bytes)
    if keeps_figures:
        figures.keep_memory(sizing.num_slots, memory_bytes)
    report = LaneReport(
        num_slots=sizing.num_slots,
        queue_limit=options.queue_limit,
        slots_rule=sizing.rule,
        memory_bytes=memory_bytes,
        step_s=curve,
    )
    return OpenedLane(lane=lane, report=report)


def open_lane_later(options: LaneOptions) -> OpenedLane:
    """The same for a lane that is opened beside others; what is measured while they step is not kept."""
    return open_lane(options, Meter(options.budget), keeps_figures=False)


def _checked(lane: Attempts, name: str, meter: Meter) -> Attempts:
    """The lane, warm and within the budget; or nothing of it."""
    try:
        warm_up(lane)
        meter.check(name)
    except BaseException:
        lane.engine.close()
        del lane
        _release()
        raise
    return lane


def _measured(bundle: Bundle, options: LaneOptions) -> Curve:
    """The curve of an engine that is closed again, so that a lane holds no more than its own slots need."""
    engine = _engine(bundle, options, options.max_slots)
    try:
        return measure(engine, bundle.puzzle_table[0])
    finally:
        engine.close()
        del engine
        _release()


def _engine(bundle: Bundle, options: LaneOptions, num_slots: int) -> Engine:
    choice = options.choice
    return engine_for(
        bundle,
        engine=choice.engine,
        precision=choice.precision,
        num_slots=num_slots,
        num_threads=options.num_threads,
    )


def _lane(bundle: Bundle, options: LaneOptions, num_slots: int) -> Attempts:
    return Attempts(
        _engine(bundle, options, num_slots),
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=options.queue_limit,
        max_attempts=options.max_attempts,
        identifiers=bundle.identifiers,
    )


def _graph_bytes(bundle: Bundle, options: LaneOptions) -> int:
    device = "cpu" if options.choice.engine == "cpu" else "any"
    return bundle.graph_path(options.choice.precision, device=device).stat().st_size


def _release() -> None:
    gc.collect()
    memory.give_back_freed_memory()
