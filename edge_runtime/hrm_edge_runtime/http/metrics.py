"""Prometheus metrics, read from what this process knows and from the engine's last snapshot, without asking it.

Each application has a registry of its own, so that two in one process (as in tests) do not share counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result
from hrm_edge_runtime.worker.client import EngineClient
from hrm_host.board import Energy, Sensors

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Everything behind `GET /metrics`."""

    def __init__(self, engine_client: EngineClient, sensors: Sensors | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine_client))
        self._registry.register(BoardCollector(sensors or Sensors()))
        ProcessCollector(registry=self._registry)
        ProcessCollector(
            namespace="hrm_engine", pid=lambda: engine_client.process.pid or "none", registry=self._registry
        )
        self._http_requests = Counter(
            "hrm_http_requests", "Answered requests.", ["route", "status"], registry=self._registry
        )
        self._key_requests = Counter(
            "hrm_key_requests", "Answered requests of each key.", ["key", "status"], registry=self._registry
        )
        self._http_seconds = self._histogram("hrm_http_request_seconds", "From request to answer.", "route")
        self._queue_seconds = self._histogram("hrm_solve_queue_seconds", "From arrival to a slot.", "model")
        self._compute_seconds = self._histogram("hrm_solve_compute_seconds", "From a slot to the end.", "model")
        self._answers = Counter(
            "hrm_answers",
            "Puzzles answered, by how the answering attempt halted.",
            ["model", "halted_by"],
            registry=self._registry,
        )

    def watch(self, collector: Collector) -> None:
        """Add the figures of another collector."""
        self._registry.register(collector)

    def note_request(self, route: str, status: int, seconds: float, key: str | None) -> None:
        """An answered request; `key` is its key's label."""
        self._http_requests.labels(route, str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)
        if key is not None:
            self._key_requests.labels(key, str(status)).inc()

    def note_solved(self, model: str, result: Result) -> None:
        self._queue_seconds.labels(model).observe(result.queue_s)
        self._compute_seconds.labels(model).observe(result.compute_s)
        self._answers.labels(model, result.halted_by).inc()

    def families(self) -> Iterable[Metric]:
        """Every metric with its present value."""
        return self._registry.collect()

    def _histogram(self, name: str, text: str, label: str) -> Histogram:
        return Histogram(name, text, [label], buckets=SECONDS, registry=self._registry)

    def page(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class EngineCollector(Collector):
    """Turns the engine_client's view of the engine into metrics at the moment of a scrape.

    Counters from the lane start at zero with every new engine process; Prometheus expects that of a restart.
    """

    def __init__(self, engine_client: EngineClient) -> None:
        self._engine_client = engine_client

    def collect(self) -> Iterable[Metric]:
        engine_client = self._engine_client
        yield _gauge("hrm_ready", "1 where new work is taken.", float(engine_client.state == "ready"))
        yield _gauge("hrm_requests_waiting", "Requests that wait for the engine.", engine_client.num_waiting)
        yield _gauge("hrm_step_age_seconds", "Since the last step while work waits.", engine_client.step_age_s)
        yield _counter("hrm_engine_losses", "Engine processes that died.", engine_client.process.num_losses)
        yield _gauge(
            "hrm_engine_losses_in_a_row",
            "Those without a healthy time between.",
            engine_client.process.backoff.num_in_a_row,
        )
        snapshot = engine_client.snapshot
        age_s = time.monotonic() - snapshot.taken_s if snapshot else None
        yield _gauge("hrm_snapshot_age_seconds", "Age of the figures of lanes.", age_s)
        yield from _lane_metrics(snapshot.lanes if snapshot else {})
        memory = GaugeMetricFamily("hrm_lane_memory_bytes", "Memory that opening the lane took.", labels=["model"])
        for model, report in engine_client.lane_manager.reports.items():
            memory.add_metric([model], report.memory_bytes)
        yield memory


class BoardCollector(Collector):
    """The machine beneath: families without a sample where it has no such sensor."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._energy = Energy(sensors=sensors)

    def collect(self) -> Iterable[Metric]:
        power = GaugeMetricFamily("hrm_board_power_watts", "Power of a supply rail.", labels=["rail"])
        energy = CounterMetricFamily("hrm_board_energy_joules", "Energy since the first scrape.", labels=["rail"])
        heat = GaugeMetricFamily("hrm_board_temperature_celsius", "Of a thermal zone.", labels=["zone"])
        throttled = CounterMetricFamily("hrm_board_throttles", "Over-current events of the board.", labels=["event"])
        readings = (
            (power, self._sensors.power_w()),
            (energy, self._energy.read_j()),
            (heat, self._sensors.temperature_c()),
            (throttled, self._sensors.throttle_events()),
        )
        for family, values in readings:
            for label, value in values.items():
                family.add_metric([label], value)
            yield family


_GAUGES: tuple[tuple[str, str, Callable[[LaneSnapshot], float]], ...] = (
    ("hrm_slots", "Slots of the lane.", lambda lane: lane.num_slots),
    ("hrm_slots_active", "Slots with an attempt in them.", lambda lane: lane.num_active),
    ("hrm_queue_length", "Attempts that wait for a slot.", lambda lane: lane.num_queued),
    ("hrm_occupancy", "Share of the rows that worked while others waited.", lambda lane: lane.occupancy),
    ("hrm_expected_wait_seconds", "Wait for a slot of one that came now.", lambda lane: lane.expected_wait_s),
)
_COUNTERS: tuple[tuple[str, str, Callable[[LaneSnapshot], float]], ...] = (
    ("hrm_steps", "Segments run over the batch.", lambda lane: lane.steps),
    ("hrm_slot_segments", "Segments run, counted for each attempt.", lambda lane: lane.slot_segments),
    ("hrm_backlog_slot_segments_used", "Rows busy while others waited.", lambda lane: lane.slot_segments_used),
    ("hrm_backlog_slot_segments_offered", "Rows while others waited.", lambda lane: lane.slot_segments_offered),
    ("hrm_step_seconds", "Time in the engine's steps.", lambda lane: lane.step_seconds_total),
    ("hrm_host_seconds", "Time of the host around them.", lambda lane: lane.host_seconds_total),
)


def _lane_metrics(lanes: Mapping[str, LaneSnapshot]) -> Iterable[Metric]:
    """Each family once, with a sample for every lane."""
    for name, text, value_of in _GAUGES:
        yield _by_model(GaugeMetricFamily(name, text, labels=["model"]), lanes, value_of)
    for name, text, value_of in _COUNTERS:
        yield _by_model(CounterMetricFamily(name, text, labels=["model"]), lanes, value_of)
    outcomes = CounterMetricFamily("hrm_puzzles", "Attempts that ended, by how.", labels=["model", "outcome"])
    segments = HistogramMetricFamily("hrm_segments_per_puzzle", "Segments until an attempt halted.", labels=["model"])
    for model, lane in lanes.items():
        for outcome, count in lane.completed.items():
            outcomes.add_metric([model, outcome], count)
        _add_histogram(segments, lane.segments_histogram, model)
    yield outcomes
    yield segments


def _by_model(
    family: GaugeMetricFamily | CounterMetricFamily,
    lanes: Mapping[str, LaneSnapshot],
    value_of: Callable[[LaneSnapshot], float],
) -> Metric:
    for model, lane in lanes.items():
        family.add_metric([model], value_of(lane))
    return family


def _add_histogram(family: HistogramMetricFamily, counts: tuple[int, ...], model: str) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for num_segments, count in enumerate(counts):
        total += count
        buckets.append((f"{num_segments}.0", total))
    segments = sum(num * count for num, count in enumerate(counts))
    family.add_metric([model], buckets=[*buckets, ("+Inf", total)], sum_value=segments)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)
