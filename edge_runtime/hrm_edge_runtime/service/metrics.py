"""Prometheus metrics, read from what this process knows and the engine's last snapshot; nobody is asked for anything.

Each application has a registry of its own, so that two in one process (as in tests) do not share counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hrm_edge_runtime.batching.counters import LaneSnapshot
from hrm_edge_runtime.batching.lane import Result
from hrm_edge_runtime.service.supervisor import Supervisor

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Everything behind `GET /metrics`."""

    def __init__(self, supervisor: Supervisor, model: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(supervisor, model))
        ProcessCollector(registry=self._registry)
        ProcessCollector(namespace="hrm_engine", pid=lambda: supervisor.engine_pid or "none", registry=self._registry)
        self.http_requests = Counter(
            "hrm_http_requests", "Answered requests.", ["route", "status"], registry=self._registry
        )
        self.http_seconds = Histogram(
            "hrm_http_request_seconds", "From request to answer.", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._queue_seconds = Histogram(
            "hrm_solve_queue_seconds", "From arrival to a slot.", buckets=SECONDS, registry=self._registry
        )
        self._compute_seconds = Histogram(
            "hrm_solve_compute_seconds", "From a slot to the end.", buckets=SECONDS, registry=self._registry
        )

    def note_solved(self, result: Result) -> None:
        self._queue_seconds.observe(result.queue_s)
        self._compute_seconds.observe(result.compute_s)

    def page(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class EngineCollector(Collector):
    """Turns the supervisor's view of the engine into metrics at the moment of a scrape.

    Counters from the lane start at zero with every new engine process; Prometheus expects that of a restart.
    """

    def __init__(self, supervisor: Supervisor, model: str) -> None:
        self._supervisor = supervisor
        self._model = model

    def collect(self) -> Iterable[Metric]:
        supervisor = self._supervisor
        yield _gauge("hrm_ready", "1 where new work is taken.", float(supervisor.state == "ready"))
        yield _gauge("hrm_requests_waiting", "Requests that wait for the engine.", supervisor.num_waiting)
        yield _gauge("hrm_step_age_seconds", "Since the last step while work waits.", supervisor.step_age_s)
        yield _counter("hrm_engine_losses", "Engine processes that died.", supervisor.num_losses)
        yield _gauge(
            "hrm_engine_losses_in_a_row", "Those without a healthy time between.", supervisor.backoff.num_in_a_row
        )
        if supervisor.snapshot is not None:
            yield _gauge(
                "hrm_snapshot_age_seconds", "Age of the figures below.", time.monotonic() - supervisor.snapshot.taken_s
            )
            yield from _lane_metrics(supervisor.snapshot.lane, self._model)


def _lane_metrics(lane: LaneSnapshot, model: str) -> Iterable[Metric]:
    yield _gauge("hrm_slots", "Slots of the lane.", lane.num_slots, model)
    yield _gauge("hrm_slots_active", "Slots with a puzzle in them.", lane.num_active, model)
    yield _gauge("hrm_queue_length", "Puzzles that wait for a slot.", lane.num_queued, model)
    yield _gauge("hrm_expected_wait_seconds", "Wait for a slot of a puzzle that came now.", lane.expected_wait_s, model)
    yield _counter("hrm_steps", "Segments run over the batch.", lane.steps, model)
    yield _counter("hrm_slot_segments", "Segments run, counted for each puzzle.", lane.slot_segments, model)
    yield _counter(
        "hrm_backlog_slot_segments_used", "Rows that worked while others waited.", lane.slot_segments_used, model
    )
    yield _counter(
        "hrm_backlog_slot_segments_offered", "Rows there were while others waited.", lane.slot_segments_offered, model
    )
    yield _counter("hrm_step_seconds", "Time in the engine's steps.", lane.step_seconds_total, model)
    yield _counter("hrm_host_seconds", "Time of the host around them.", lane.host_seconds_total, model)
    outcomes = CounterMetricFamily("hrm_puzzles", "Puzzles that ended, by how.", labels=["model", "outcome"])
    for outcome, count in lane.completed.items():
        outcomes.add_metric([model, outcome], count)
    yield outcomes
    yield _segments_histogram(lane.segments_histogram, model)


def _segments_histogram(counts: tuple[int, ...], model: str) -> Metric:
    family = HistogramMetricFamily("hrm_segments_per_puzzle", "Segments until a puzzle halted.", labels=["model"])
    buckets: list[tuple[str, float]] = []
    total = 0
    for num_segments, count in enumerate(counts):
        total += count
        buckets.append((f"{num_segments}.0", total))
    segments = sum(num * count for num, count in enumerate(counts))
    family.add_metric([model], buckets=[*buckets, ("+Inf", total)], sum_value=segments)
    return family


def _gauge(name: str, text: str, value: float, model: str | None = None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["model"] if model else None)
    family.add_metric([model] if model else [], value)
    return family


def _counter(name: str, text: str, value: float, model: str | None = None) -> Metric:
    family = CounterMetricFamily(name, text, labels=["model"] if model else None)
    family.add_metric([model] if model else [], value)
    return family
