"""Simulates devices: the real lane, scheduler and proofs, recorded answers, given step times.

`python tools/simulated_device.py PICTURE.png` prints the tables of
benchmarks/results/2026-11-26-simulated-device.md and draws its picture. Shapes: B slots, T tokens.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import typer
from matplotlib.figure import Figure

from hrm_benchmarks.command import ServingOptions
from hrm_benchmarks.policies import POLICIES, Bench, Meter, Policy, attempts_of, bundle_bench
from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.stats import LaneCounters
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_puzzles.data.sources import questions_made

NUM_PUZZLES = 1024
MAX_SEGMENTS = 16  # the budget of the published models
SLOTS = (1, 2, 4, 8, 16, 32, 64)
OPEN_SLOTS = 16

Recording = dict[bytes, list[Int32]]
"""The answer after each segment, by the puzzle's tokens."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """`step_s` maps active slots to seconds; `host_factor` is its host's CPU time over ours."""

    name: str
    step_s: Callable[[int], float]
    host_factor: float
    rates_per_s: tuple[float, ...]  # of puzzles that arrive at random


def orin_step_s(
    num_active: int, *, kernels: int, weight_mb: float, puzzle_mb: float, puzzle_mflop: float
) -> float:
    """Calculate a segment on an Orin Nano Super; the page names the source of each figure."""
    bucket = min(num_slots for num_slots in SLOTS if num_slots >= num_active)
    launch_s = 40e-6
    kernels_s = 3e-6 * kernels
    memory_s = (weight_mb + bucket * puzzle_mb) / (0.6 * 102e3)
    arithmetic_s = bucket * puzzle_mflop / (0.6 * 16.7e6)
    return launch_s + max(kernels_s, memory_s, arithmetic_s)


h100_step_s = partial(np.interp, xp=[1, 16, 64], fp=[1.68e-3, 2.20e-3, 2.22e-3])
shipped_step_s = partial(orin_step_s, kernels=57, weight_mb=0.2, puzzle_mb=6.1, puzzle_mflop=56)
large_step_s = partial(orin_step_s, kernels=200, weight_mb=164, puzzle_mb=50, puzzle_mflop=13_700)
DEVICES = (
    Device(name="H100", step_s=h100_step_s, host_factor=1, rates_per_s=(100, 200, 400, 800)),
    Device(
        name="Orin Nano Super",
        step_s=shipped_step_s,
        host_factor=4,
        rates_per_s=(150, 300, 600, 1200),
    ),
    Device(name="Orin, 27 M", step_s=large_step_s, host_factor=4, rates_per_s=(12, 25, 50, 100)),
)


def record(bench: Bench) -> Recording:
    """Run all segments of all puzzles on the bench's engine, as one batch of 2.5 GB."""
    tokens_BT = bench.questions.tokens_NT
    recording: Recording = {}
    for slot, tokens_T in enumerate(tokens_BT):
        bench.engine.load(slot, tokens_T, bench.puzzle_table[0])
        recording[tokens_T.tobytes()] = []
    for _ in range(bench.rule.max_segments):
        answer_BT = bench.engine.step(len(tokens_BT)).answer_BT.copy()
        for tokens_T, answer_T in zip(tokens_BT, answer_BT, strict=True):
            recording[tokens_T.tobytes()].append(answer_T)
    return recording


class SimulatedEngine(Engine):
    """Replays a recording. A step takes the time of the device and none of this process."""

    def __init__(self, recording: Recording, device: Device, num_slots: int) -> None:
        self.num_slots = num_slots
        self.seq_len = len(next(iter(recording.values()))[0])
        self._recording = recording
        self._device = device
        self._jumped_s = 0.0
        self._coming: list[list[Int32]] = [[]] * num_slots

    def now_s(self) -> float:
        """Return the CPU seconds of this process, as the device's host takes them, plus jumps."""
        return self._jumped_s + self._device.host_factor * time.process_time()

    def jump_to(self, now_s: float) -> None:
        self._jumped_s += now_s - self.now_s()

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        del puzzle_vector_E  # the tokens select the recording
        self._coming[slot] = self._recording[tokens_T.tobytes()]

    def move(self, source: int, target: int) -> None:
        self._coming[target] = self._coming[source]

    def step(self, num_active: int) -> StepOutput:
        began_s = self.now_s()
        answer_BT = np.array([coming[0] for coming in self._coming[:num_active]])
        for slot in range(num_active):
            coming = self._coming[slot]
            self._coming[slot] = coming[1:] or coming  # the last answer stays
        margin_B = np.zeros(num_active, np.float32)  # proofs alone decide
        self.jump_to(began_s + self._device.step_s(num_active))
        return StepOutput(answer_BT=answer_BT, halt_margin_B=margin_B, q_halt_B=margin_B)


def served(
    policy: Policy, bench: Bench, engine: SimulatedEngine, per_s: float = np.inf
) -> tuple[list[float], LaneCounters]:
    """Serve puzzles that arrive at random, `per_s` in the mean; by default all are there at once.

    A batch takes the puzzles that wait when the last batch has ended. Returns the latencies in
    seconds, and what the lane counted.
    """
    arriving = attempts_of(policy, bench)
    num_puzzles = len(arriving)
    gaps_s = np.random.default_rng(0).exponential(1 / per_s, num_puzzles)
    for attempt, arrival_s in zip(arriving, np.cumsum(gaps_s).tolist(), strict=True):
        attempt.arrival_s = arrival_s
    width = 1 if policy.single else engine.num_slots
    meter = Meter(engine, width=width, burns=policy.burns, num_puzzles=num_puzzles)
    lane = Lane(meter, bench.puzzle, queue_limit=num_puzzles, clock=engine.now_s)
    latencies_s: list[float] = []
    engine.jump_to(0.0)
    while arriving or lane.has_work:
        if not lane.has_work:
            engine.jump_to(max(engine.now_s(), arriving[0].arrival_s))
        now_s = engine.now_s()
        room = width
        if policy.batches and lane.has_work:
            room = 0
        while room and arriving and arriving[0].arrival_s <= now_s:
            lane.submit(arriving.pop(0))
            room -= 1
        for attempt in lane.step():
            latencies_s.append(attempt.queue_s + attempt.compute_s)
    return latencies_s, lane.counters


def main(picture: Path) -> None:
    """Print a row for each device and policy, and draw PICTURE."""
    bundle = Bundle.open(find_bundle("sudoku"))
    questions = questions_made(bundle.puzzle, NUM_PUZZLES)
    options = ServingOptions(engine="cpu", slots=NUM_PUZZLES, cpu_clock=True)
    bench = bundle_bench(bundle, questions, options)
    bench = bench._replace(rule=replace(bench.rule, max_segments=MAX_SEGMENTS))
    recording = record(bench)
    _, counters = served(POLICIES[0], bench, SimulatedEngine(recording, DEVICES[0], 1))
    print(dict(counters.completed), sorted(counters.segments.items()))
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle("Simulated: puzzles per second by slots, all puzzles waiting")
    for axes, device in zip(figure.subplots(1, len(DEVICES)), DEVICES, strict=True):
        axes.set(title=device.name, xlabel="slots")
        for policy in POLICIES:
            cells = [device.name, policy.name]
            speeds: list[float] = []
            for num_slots in SLOTS:
                engine = SimulatedEngine(recording, device, num_slots)
                _, counters = served(policy, bench, engine)
                speeds.append(NUM_PUZZLES / engine.now_s())
                host_us = 1e6 * counters.host_seconds_total / counters.steps
                cells.append(f"{speeds[-1]:.0f}, {host_us:.0f}")
            axes.semilogx(SLOTS, speeds, base=2, marker="o", label=policy.name)
            for per_s in device.rates_per_s:
                engine = SimulatedEngine(recording, device, OPEN_SLOTS)
                latencies_s, _ = served(policy, bench, engine, per_s)
                p50_s, p99_s = np.percentile(latencies_s, [50, 99])
                cells.append(f"{1e3 * p50_s:.1f}, {1e3 * p99_s:.1f}")
            print("|", " | ".join(cells), "|", flush=True)
    figure.axes[0].legend()
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    typer.run(main)
