"""Acceptance of a device: parity, speed, a soak test, and one JSON file with all findings.

    python3 -m hrm_parity.acceptance model.bundle --soak-minutes 30 --out acceptance.json

Made for a Jetson (`make check-jetson`), where it has not run yet, and for a graphics card
(`make check-gpu`); it runs on any engine. It fails if parity breaks, a puzzle gets no answer, or
the process grows. A part that fails does not stop the others.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, find_bundle
from hrm_edge_runtime.engines.engine import Engine, median_step_ms
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.engines.trt.profiles import buckets_for
from hrm_host import atomic, command, machine, memory
from hrm_parity import BUILD_COMMAND
from hrm_parity.device import try_device

if TYPE_CHECKING:
    from hrm_parity.comparison import Comparison

BENCH = "from hrm_benchmarks.cli import app; app()"
MEASURE_S = 2.0
MIN_STEPS = 20
HTTP_S = 10.0
SAMPLE_EVERY_S = 5.0
MAX_GROWTH_MB = 64  # growth of the process during the soak
REPORTED_VERSIONS = ("cuda.bindings", "numpy", "onnxruntime", "pycuda", "tensorrt")
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}
"""What a tag inside a test of a JUnit report means; a test without one passed."""

Found = tuple[Any, list[str]]
"""The findings of a part, and its faults."""
Part = Callable[[], Found]

app = command.Command("acceptance")


@app.command(epilog="Example: python3 -m hrm_parity.acceptance model.bundle --engine tensorrt:fp16")
def accept_command(
    bundle: Annotated[
        str | None,
        typer.Argument(help="Bundle directory or shipped name. Default: sudoku."),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE[:PRECISION]", help="Engine, as in hrm-serve.")
    ] = "auto",
    slots: Annotated[int, typer.Option(min=1, max=64, help="Puzzles per batch.")] = 4,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")
    ] = None,
    soak_minutes: Annotated[float, typer.Option(min=0, help="Minutes of the soak test.")] = 10.0,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also check TensorRT step by step, every shipped bundle, and HTTP."
        ),
    ] = False,
    tests: Annotated[
        Path | None, typer.Option(help="JUnit report of pytest to include in the findings.")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON file for the report.")] = Path("acceptance.json"),
) -> None:
    """Check parity, speed and endurance on this device; exits with 1 if one fails."""
    report = _Report(out=out)
    parts: dict[str, Part] = {}
    if full:
        parts["steps"] = _device_steps
    if tests is not None:
        parts["tests"] = lambda: outcomes_of(tests)
    try:
        served = _open(bundle, engine, slots, threads)
    except Exception as error:  # the other parts may still find something
        report.faults.append(str(error))
    else:
        report.findings["bundle"] = served.description()
        report.findings["engine"] = {"choice": str(served.choice), "slots": slots}
        parts["parity"] = served.parity
        parts["bench"] = served.bench
        parts["soak"] = lambda: _soak(served, 60 * soak_minutes)
        if full:
            parts["shipped"] = served.shipped
            parts["http"] = served.over_http
    for name, part in parts.items():
        typer.echo(name, err=True)
        report.run(name, part)
    report.finish()
    verdict = "passed"
    if report.faults:
        verdict = "FAILED: " + "; ".join(report.faults)
    typer.echo(f"{verdict}: {out}", err=True)
    raise typer.Exit(1 if report.faults else 0)


def _device() -> dict[str, Any]:
    facts = machine.Host().facts()
    return {**facts, "machine": platform.machine(), "python": platform.python_version()}


@dataclass(kw_only=True)
class _Report:
    """The findings. They are saved before every part; after a crash `running` names that part."""

    out: Path
    faults: list[str] = field(default_factory=list[str])
    findings: dict[str, Any] = field(default_factory=lambda: {"device": _device()})

    def run(self, name: str, part: Part) -> None:
        self._write(passed=False, running=name)
        try:
            self.findings[name], faults = part()
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        self.faults += [f"{name}: {fault}" for fault in faults]

    def finish(self) -> None:
        self.findings["versions"] = _versions()
        self._write(passed=not self.faults, running=None)

    def _write(self, *, passed: bool, running: str | None) -> None:
        state = {"faults": self.faults, "passed": passed, "running": running}
        content = {**self.findings, **state}
        atomic.write_text(self.out, json.dumps(content, indent=1) + "\n")


def _versions() -> dict[str, str]:
    """Versions of the libraries that this run has loaded."""
    versions: dict[str, str] = {}
    for name in REPORTED_VERSIONS:
        if name in sys.modules:
            versions[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return versions


def _device_steps() -> Found:
    return try_device(), []


def outcomes_of(junit: Path) -> Found:
    """Every test of a JUnit report: passed, failed or skipped, its reason and its figures."""
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        outcomes[name] = ": ".join(_outcome(case))
    failed = [f"{name}: {text}" for name, text in outcomes.items() if text.startswith("failed")]
    return outcomes, failed


def _outcome(case: ElementTree.Element) -> list[str]:
    parts = ["passed"]
    for child in case:
        if child.tag in OUTCOMES:
            message = child.get("message") or ""
            parts = [OUTCOMES[child.tag], *message.splitlines()[:1]]
            break
    figures = [f"{one.get('name')} {one.get('value')}" for one in case.iter("property")]
    return parts + figures


def _open(name: str | None, engine: str, num_slots: int, num_threads: int | None) -> _Served:
    bundle = Bundle.open(find_bundle(name))
    choice = prepare(
        bundle, engine, num_slots=num_slots, build_command=BUILD_COMMAND, to_judge=True
    )
    return _Served(bundle=bundle, choice=choice, num_slots=num_slots, num_threads=num_threads)


@dataclass(frozen=True, kw_only=True)
class _Served:
    """A bundle on an engine; each method that returns Found is a part of the report."""

    bundle: Bundle
    choice: Choice
    num_slots: int
    num_threads: int | None

    def description(self) -> dict[str, Any]:
        manifest = self.bundle.manifest
        return {"name": manifest.name, "provenance": manifest.provenance}

    def parity(self) -> Found:
        report = self._compared(self.bundle, str(self.choice))
        return report.as_json(), [str(one) for one in report.breaks]

    def shipped(self) -> Found:
        """The gates that each shipped bundle breaks on its golden traces, by precision."""
        found: dict[str, list[str]] = {}
        for path in sorted(SHIPPED_BUNDLES.glob("*.bundle")):
            bundle = Bundle.open(path)
            for precision in bundle.manifest.precisions:
                engine = f"{self.choice.engine}:{precision}"
                found[f"{bundle.manifest.name} {engine}"] = self._breaks(bundle, engine)
        return found, [f"{name}: {breaks[0]}" for name, breaks in found.items() if breaks]

    def bench(self) -> Found:
        """Median time of a segment per batch size, with a real puzzle in every active slot."""
        golden = self.bundle.golden()
        times_ms: dict[int, float] = {}
        with closing(self.opened()) as engine:
            for slot in range(engine.num_slots):
                puzzle = slot % len(golden.tokens_BT)
                vector_E = self.bundle.puzzle_table[golden.puzzle_ids_B[puzzle]]
                engine.load(slot, golden.tokens_BT[puzzle], vector_E)
            for batch in buckets_for(engine.num_slots):
                step_ms = median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=MIN_STEPS)
                times_ms[batch] = round(step_ms, 3)
        return {"step_ms": times_ms}, []

    def over_http(self) -> Found:
        """Puzzles per second through hrm-serve, and latencies below that rate, from hrm-bench."""
        if importlib.util.find_spec("aiohttp") is None:
            return {"skipped": "hrm-bench needs aiohttp: run pip install 'hrm-edge[bench]'"}, []
        model = ("--bundle", str(self.bundle.path), "--engine", str(self.choice))
        options = ("--slots", str(self.num_slots), "--seconds", str(HTTP_S), "--json")
        command = [sys.executable, "-c", BENCH, "serve", "--http", *model, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [f"status {done.returncode}", *done.stderr.strip().splitlines()]
            return None, lines[-1:]
        return json.loads(done.stdout), []

    def opened(self) -> Engine:
        return engine_for(
            self.bundle,
            engine=str(self.choice),
            num_slots=self.num_slots,
            num_threads=self.num_threads,
        )

    def attempts(self, until_s: float) -> Iterator[Attempt]:
        """Yield the golden puzzles, each at least once, and repeat them until `until_s`."""
        golden = self.bundle.golden()
        num_puzzles = len(golden.tokens_BT)
        policy = self.bundle.manifest.halting_policy(self.choice.precision)
        for number in itertools.count():
            if number >= num_puzzles and time.monotonic() >= until_s:
                return
            puzzle = number % num_puzzles
            yield Attempt(
                attempt_id=number,
                tokens_T=golden.tokens_BT[puzzle],
                puzzle_vector_E=self.bundle.puzzle_table[golden.puzzle_ids_B[puzzle]],
                policy=policy,
                arrival_s=time.monotonic(),
            )

    def _breaks(self, bundle: Bundle, engine: str) -> list[str]:
        try:
            report = self._compared(bundle, engine)
        except Exception as error:
            return [str(error)]
        return [str(one) for one in report.breaks]

    def _compared(self, bundle: Bundle, engine: str) -> Comparison:
        from hrm_parity.comparison import ParityOptions, compare_engines

        options = ParityOptions(engine=engine, slots=self.num_slots, threads=self.num_threads)
        return compare_engines(bundle, options)


def _soak(served: _Served, soak_s: float) -> Found:
    """Solve the golden puzzles over and over.

    Answers may change, because other batch sizes may round differently.
    """
    counts = Counter[str]()
    first_answers: dict[int, bytes] = {}
    samples: list[dict[str, Any]] = []
    num_puzzles = len(served.bundle.golden().tokens_BT)
    with closing(served.opened()) as engine:
        lane = Lane(engine, served.bundle.puzzle, queue_limit=engine.num_slots)
        began_s = time.monotonic()
        sampled_s = began_s
        attempts = served.attempts(until_s=began_s + soak_s)
        for result in run_all(lane, attempts):
            answer = b""
            if result.answer_T is not None:
                answer = result.answer_T.tobytes()
            puzzle = result.attempt_id % num_puzzles
            first_answer = first_answers.setdefault(puzzle, answer)
            counts["puzzles"] += 1
            counts["changed"] += answer != first_answer
            counts["failed"] += result.halted_by == "failed"
            counts["verified"] += result.verified is True
            counts["segments"] += result.segments
            now_s = time.monotonic()
            if not samples or now_s - sampled_s >= SAMPLE_EVERY_S:
                samples.append(_sample(now_s - began_s, lane))
                sampled_s = now_s
        samples.append(_sample(time.monotonic() - began_s, lane))
    return _soak_findings(counts, samples)


def _soak_findings(counts: Counter[str], samples: list[dict[str, Any]]) -> Found:
    first_mb = samples[1]["rss_mb"] or 0  # the first sample is from before the engine is warm
    last_mb = samples[-1]["rss_mb"] or 0
    growth_mb = last_mb - first_mb
    seconds = samples[-1]["at_s"]
    faults: list[str] = []
    if counts["failed"]:
        faults.append(f"{counts['failed']} puzzles got no answer")
    if growth_mb > MAX_GROWTH_MB:
        faults.append(f"the process grew by {growth_mb} MB during the soak")
    found = {
        "seconds": seconds,
        "puzzles": counts["puzzles"],
        "puzzles_per_s": round(counts["puzzles"] / max(seconds, 0.1), 2),
        "verified": counts["verified"],
        "mean_segments": round(counts["segments"] / counts["puzzles"], 3),
        "changed_answers": counts["changed"],
        "growth_mb": growth_mb,
        "samples": samples,
    }
    return found, faults


def _sample(at_s: float, lane: Lane) -> dict[str, Any]:
    host = machine.Host()
    available_mb = None
    account = memory.read_memory()
    if account is not None:
        available_mb = account.available_mb
    gpu_mhz = None
    for clock in host.gpu_clocks():
        gpu_mhz = str(clock.now_hz // 10**6)
    return {
        "at_s": round(at_s, 1),
        "step_ms": round(1e3 * lane.counters.mean_step_s, 3),
        "rss_mb": memory.resident_bytes() // memory.MIB or None,
        "available_mb": available_mb,
        "temperature_c": host.hottest_c(),
        "gpu_mhz": gpu_mhz,
    }


if __name__ == "__main__":
    app()
