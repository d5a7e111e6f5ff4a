"""Prometheus metrics, read from what this process knows and from the engine's last snapshot, without asking it."""

import functools
import itertools
import time
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily as _Counter
from prometheus_client.core import GaugeMetricFamily as _Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hrm_edge_runtime.batching import task
from hrm_edge_runtime.worker.client import EngineClient
from hrm_host.board import Energy, Host

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_LANE_FIGURES: tuple[
    tuple[type[_Gauge | _Counter], str, str, str], ...
] = (  # the last is what a snapshot calls it
    (_Gauge, "hrm_slots", "Slots of the lane.", "num_slots"),
    (_Gauge, "hrm_slots_active", "Slots with an attempt in them.", "num_active"),
    (_Gauge, "hrm_queue_length", "Attempts that wait for a slot.", "num_queued"),
    (_Gauge, "hrm_occupancy", "Share of the rows that worked while others waited.", "occupancy"),
    (
        _Gauge,
        "hrm_expected_wait_seconds",
        "Wait for a slot of one that came now.",
        "expected_wait_s",
    ),
    (_Counter, "hrm_steps", "Segments run over the batch.", "steps"),
    (_Counter, "hrm_slot_segments", "Segments run, counted for each attempt.", "slot_segments"),
    (
        _Counter,
        "hrm_backlog_slot_segments_used",
        "Rows busy while others waited.",
        "slot_segments_used",
    ),
    (
        _Counter,
        "hrm_backlog_slot_segments_offered",
        "Rows while others waited.",
        "slot_segments_offered",
    ),
    (_Counter, "hrm_hypotheses", "Cells treated as given for a while.", "hypotheses"),
    (_Counter, "hrm_step_seconds", "Time in the engine's steps.", "step_seconds_total"),
    (_Counter, "hrm_host_seconds", "Time of the host around them.", "host_seconds_total"),
)


class Metrics(Collector):
    """Everything behind `GET /metrics`; counters from a lane start at zero with every new engine process."""

    def __init__(self, engine_client: EngineClient) -> None:
        self._engine_client = engine_client
        self._machine = Host()
        self._energy = Energy(machine=self._machine)
        self.registry = CollectorRegistry()  # applications in one process share no counts
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        ProcessCollector(
            namespace="hrm_engine",
            pid=lambda: engine_client.process.pid or "none",
            registry=self.registry,
        )
        counter = functools.partial(Counter, registry=self.registry)
        histogram = functools.partial(Histogram, buckets=SECONDS, registry=self.registry)
        self._http_requests = counter(
            "hrm_http_requests", "Answered requests.", ["route", "status"]
        )
        self._key_requests = counter(
            "hrm_key_requests", "Answered requests of each key.", ["key", "status"]
        )
        self._http_seconds = histogram(
            "hrm_http_request_seconds", "From request to answer.", ["route"]
        )
        self._queue_seconds = histogram(
            "hrm_solve_queue_seconds", "From arrival to a slot.", ["model"]
        )
        self._compute_seconds = histogram(
            "hrm_solve_compute_seconds", "From a slot to the end.", ["model"]
        )
        self._answers = counter(
            "hrm_answers",
            "Puzzles answered, by what is known of the answer.",
            ["model", "status", "halted_by", "how"],
        )

    def note_request(self, route: str, status: int, seconds: float, key: str | None) -> None:
        """An answered request; `key` is its key's label."""
        self._http_requests.labels(route, str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)
        if key is not None:
            self._key_requests.labels(key, str(status)).inc()

    def note_solved(self, model: str, result: task.Result) -> None:
        self._queue_seconds.labels(model).observe(result.queue_s)
        self._compute_seconds.labels(model).observe(result.compute_s)
        self._answers.labels(model, result.status, result.halted_by, result.how).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """The engine and the board at the moment of a scrape."""
        yield from self._engine()
        yield from self._board()

    def _engine(self) -> Iterable[Metric]:
        client = self._engine_client
        losses_in_a_row = client.process.losses_in_a_row
        age_s = time.monotonic() - client.snapshot.taken_s if client.snapshot else None
        lanes = client.snapshot.lanes if client.snapshot else {}
        yield _Gauge("hrm_ready", "1 where new work is taken.", float(client.state == "ready"))
        yield _Gauge(
            "hrm_requests_waiting", "Requests that wait for the engine.", client.num_waiting
        )
        yield _Gauge(
            "hrm_step_age_seconds", "Since the last step while work waits.", client.step_age_s
        )
        yield _Counter(
            "hrm_engine_losses", "Engine processes that died.", client.process.num_losses
        )
        yield _Gauge(
            "hrm_engine_losses_in_a_row", "Those without a healthy time between.", losses_in_a_row
        )
        yield _Gauge("hrm_snapshot_age_seconds", "Age of the figures of lanes.", age_s)
        for family_type, name, text, attribute in _LANE_FIGURES:
            family = family_type(name, text, labels=["model"])
            for model, lane in lanes.items():
                family.add_metric([model], getattr(lane, attribute))
            yield family
        outcomes = _Counter(
            "hrm_puzzles", "Attempts that ended, by how.", labels=["model", "outcome"]
        )
        text = "Segments until an attempt halted."
        segments = HistogramMetricFamily("hrm_segments_per_puzzle", text, labels=["model"])
        for model, lane in lanes.items():
            for outcome, count in lane.completed.items():
                outcomes.add_metric([model, outcome], count)
            counts = lane.segments_histogram
            buckets = [
                (f"{num}.0", float(total)) for num, total in enumerate(itertools.accumulate(counts))
            ]
            num_segments = sum(num * count for num, count in enumerate(counts))
            segments.add_metric(
                [model], buckets=[*buckets, ("+Inf", sum(counts))], sum_value=num_segments
            )
        yield outcomes
        yield segments
        memory = _Gauge(
            "hrm_lane_memory_bytes", "Memory that opening the lane took.", labels=["model"]
        )
        for model, report in client.lane_manager.reports.items():
            memory.add_metric([model], report.memory_bytes)
        yield memory

    def _board(self) -> Iterable[Metric]:
        """Families without a sample where the machine has no such sensor."""
        power = _Gauge("hrm_board_power_watts", "Power of a supply rail.", labels=["rail"])
        energy = _Counter(
            "hrm_board_energy_joules", "Energy since the first scrape.", labels=["rail"]
        )
        heat = _Gauge("hrm_board_temperature_celsius", "Of a thermal zone.", labels=["zone"])
        throttled = _Counter(
            "hrm_board_throttles", "Over-current events of the board.", labels=["event"]
        )
        readings = (
            (power, self._machine.power_w()),
            (energy, self._energy.read_j()),
            (heat, self._machine.temperature_c()),
            (throttled, self._machine.throttle_events()),
        )
        for family, values in readings:
            for label, value in values.items():
                family.add_metric([label], value)
            yield family
