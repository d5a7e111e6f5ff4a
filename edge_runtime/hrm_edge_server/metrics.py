"""Prometheus metrics of this process and of the engine's last snapshot.

A scrape sends no message to the engine.
"""

import functools
import itertools
import time
from collections.abc import Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hrm_edge_runtime.batching import task
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.worker.client import EngineClient
from hrm_host.machine import Host

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


_LANE_FIGURES = (
    (GaugeMetricFamily, "hrm_slots", "Slots of the lane.", "num_slots"),
    (GaugeMetricFamily, "hrm_slots_active", "Slots with an attempt in them.", "num_active"),
    (GaugeMetricFamily, "hrm_queue_length", "Attempts that wait for a slot.", "num_queued"),
    (
        GaugeMetricFamily,
        "hrm_occupancy",
        "Share of the rows that worked while others waited.",
        "occupancy",
    ),
    (
        GaugeMetricFamily,
        "hrm_expected_wait_seconds",
        "Expected wait of a puzzle that arrives now.",
        "expected_wait_s",
    ),
    (CounterMetricFamily, "hrm_steps", "Segments run over the batch.", "steps"),
    (
        CounterMetricFamily,
        "hrm_slot_segments",
        "Segments run, counted for each attempt.",
        "slot_segments",
    ),
    (
        CounterMetricFamily,
        "hrm_backlog_slot_segments_used",
        "Busy rows of steps that left an attempt waiting.",
        "slot_segments_used",
    ),
    (
        CounterMetricFamily,
        "hrm_backlog_slot_segments_offered",
        "Rows of steps that left an attempt waiting.",
        "slot_segments_offered",
    ),
    (CounterMetricFamily, "hrm_hypotheses", "Cells treated as given for a while.", "hypotheses"),
    (CounterMetricFamily, "hrm_step_seconds", "Time in the engine's steps.", "step_seconds_total"),
    (
        CounterMetricFamily,
        "hrm_host_seconds",
        "Time of the host around the engine's steps.",
        "host_seconds_total",
    ),
)
"""Metrics per model: type, name, text, and the attribute of a lane's snapshot."""


class Metrics(Collector):
    """Everything behind `GET /metrics`.

    The counters of a lane start at zero with every new engine process.
    """

    def __init__(self, engine_client: EngineClient) -> None:
        self._engine_client = engine_client
        self._machine = Host()
        self.num_answered = 0
        # Its own registry: two applications in one process must not share counts.
        registry = CollectorRegistry()
        self.registry = registry
        registry.register(self)
        ProcessCollector(registry=registry)
        ProcessCollector(
            namespace="hrm_engine",
            pid=lambda: engine_client.process.pid or "none",
            registry=registry,
        )
        counter = functools.partial(Counter, registry=registry)
        histogram = functools.partial(Histogram, buckets=SECONDS, registry=registry)
        self._http_requests = counter(
            "hrm_http_requests",
            "Answered requests.",
            ["route", "status"],
        )
        self._key_requests = counter(
            "hrm_key_requests",
            "Answered requests of each key.",
            ["key", "status"],
        )
        self._http_seconds = histogram(
            "hrm_http_request_seconds",
            "Time from request to answer.",
            ["route"],
        )
        self._queue_seconds = histogram(
            "hrm_solve_queue_seconds",
            "Time from arrival to a slot.",
            ["model"],
        )
        self._compute_seconds = histogram(
            "hrm_solve_compute_seconds",
            "Time from a slot to the end.",
            ["model"],
        )
        self._answers = counter(
            "hrm_answers",
            "Puzzles answered, by what is known of the answer.",
            ["model", "status", "halted_by", "how"],
        )

    def note_request(self, route: str, status: int, seconds: float, key: str | None) -> None:
        """Count an answered request; `key` is its key's label."""
        self._http_requests.labels(route, str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)
        if key is not None:
            self._key_requests.labels(key, str(status)).inc()

    def note_solved(self, model: str, result: task.Result) -> None:
        self._queue_seconds.labels(model).observe(result.queue_s)
        self._compute_seconds.labels(model).observe(result.compute_s)
        self.num_answered += 1
        self._answers.labels(model, result.status, result.halted_by, result.how).inc()

    def collect(self) -> Iterable[Metric]:
        """The engine and the board at the moment of a scrape."""
        lanes = self._engine_client.lanes_by_model
        yield from self._engine()
        for kind, name, text, attribute in _LANE_FIGURES:
            values = {model: getattr(lane, attribute) for model, lane in lanes.items()}
            yield _filled(kind(name, text, labels=["model"]), values)
        yield from _ended_attempts(lanes)
        yield self._memory()
        yield from self._board()

    def _engine(self) -> Iterable[Metric]:
        client = self._engine_client
        process = client.process
        is_ready = client.state == "ready"
        age_s = None
        if client.snapshot is not None:
            age_s = time.monotonic() - client.snapshot.taken_s
        yield GaugeMetricFamily("hrm_ready", "1 if the server takes new work.", float(is_ready))
        yield GaugeMetricFamily(
            "hrm_requests_waiting",
            "Requests that wait for the engine.",
            client.num_waiting,
        )
        yield GaugeMetricFamily(
            "hrm_step_age_seconds",
            "Time since the last step while work waits.",
            client.step_age_s,
        )
        yield CounterMetricFamily(
            "hrm_engine_losses", "Engine processes that died.", process.num_losses
        )
        yield GaugeMetricFamily(
            "hrm_engine_losses_in_a_row",
            "Losses without a healthy time between.",
            process.losses_in_a_row,
        )
        yield GaugeMetricFamily("hrm_snapshot_age_seconds", "Age of the figures of lanes.", age_s)

    def _memory(self) -> Metric:
        """The memory of each lane."""
        memory = GaugeMetricFamily(
            "hrm_lane_memory_bytes", "Memory that opening the lane took.", labels=["model"]
        )
        reports = self._engine_client.lane_manager.reports
        return _filled(memory, {lane.model: one.memory_bytes for lane, one in reports.items()})

    def _board(self) -> Iterable[Metric]:
        """Read the board's sensors. A metric has no sample if the machine lacks its sensor."""
        heat = GaugeMetricFamily(
            "hrm_board_temperature_celsius", "Temperature of a thermal zone.", labels=["zone"]
        )
        yield _filled(heat, self._machine.temperature_c())
        throttled = CounterMetricFamily(
            "hrm_board_throttles", "Over-current events of the board.", labels=["event"]
        )
        yield _filled(throttled, self._machine.throttle_events())


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    """The metric with a sample for each label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def _ended_attempts(lanes: Mapping[str, LaneSnapshot]) -> Iterable[Metric]:
    outcomes = CounterMetricFamily(
        "hrm_puzzles", "Ended attempts, by outcome.", labels=["model", "outcome"]
    )
    segments = HistogramMetricFamily(
        "hrm_segments_per_puzzle", "Segments until an attempt halted.", labels=["model"]
    )
    for model, lane in lanes.items():
        for outcome, count in lane.completed.items():
            outcomes.add_metric([model, outcome], count)
        counts = lane.segments_histogram
        totals = enumerate(itertools.accumulate(counts))
        buckets = [(f"{num_segments}.0", float(total)) for num_segments, total in totals]
        buckets.append(("+Inf", sum(counts)))
        sum_of_segments = sum(num_segments * count for num_segments, count in enumerate(counts))
        segments.add_metric([model], buckets=buckets, sum_value=sum_of_segments)
    yield outcomes
    yield segments
