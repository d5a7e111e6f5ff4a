"""One command that says whether a device does what it should: parity, benches, a soak, and one JSON of it all.

    python3 -m hrm_edge_runtime.acceptance model.bundle --soak-minutes 30 --out acceptance.json

Made for a Jetson (`make check-jetson`), where it has not been run yet, and a card (`make check-gpu`); it runs on any
engine. It fails where parity breaks, a puzzle gets no answer, or the process grows; the other parts go on.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, find_bundle
from hrm_edge_runtime.device import try_device
from hrm_edge_runtime.engines.engine import Engine, median_step_ms
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.engines.trt.cache import buckets_for
from hrm_host import atomic, board, command, memory

if TYPE_CHECKING:
    from hrm_edge_runtime.parity.comparison import Comparison

BENCH = "from hrm_benchmarks.cli import app; app()"
MEASURE_S, MIN_STEPS, HTTP_S = 2.0, 20, 10.0
SAMPLE_EVERY_S = 5.0
MAX_GROWTH_MB = 64

Found = tuple[Any, list[str]]
"""What a part of the report says, and what is wrong."""
Part = Callable[[], Found]

app = command.Command("acceptance")


@app.command(epilog="Example: python3 -m hrm_edge_runtime.acceptance model.bundle --engine tensorrt:fp16")
def accept_command(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle directory or the name of a shipped one; without it the default.")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "auto",
    slots: Annotated[int, typer.Option(min=1, max=64, help="Puzzles in one batch.")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on a CPU; without it, all cores.")] = None,
    soak_minutes: Annotated[float, typer.Option(min=0, help="How long the device solves without a pause.")] = 10.0,
    full: Annotated[
        bool, typer.Option("--full", help="Also TensorRT step by step, every shipped bundle and precision, and HTTP.")
    ] = False,
    tests: Annotated[
        Path | None, typer.Option(help="What pytest --junitxml wrote, to be kept with the findings.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the findings go.")] = Path("acceptance.json"),
) -> None:
    """Check parity, speed and endurance on this device; exits with 1 where one fails."""
    findings: dict[str, Any] = {
        "faults": [],
        "device": {**board.Host().facts(), "machine": platform.machine(), "python": platform.python_version()},
    }
    parts: dict[str, Part] = {"steps": lambda: (try_device(), [])} if full else {}
    if tests is not None:
        parts["tests"] = lambda: outcomes_of(tests)
    try:
        opened = Bundle.open(find_bundle(bundle))
        choice = prepare(opened, engine, num_slots=slots, to_judge=True)
        findings["bundle"] = {"name": opened.manifest.name, "provenance": opened.manifest.provenance}
        findings["engine"] = {"choice": str(choice), "slots": slots}
        served = _Served(bundle=opened, choice=choice, num_slots=slots, num_threads=threads)
        parts.update(parity=served.parity, bench=served.bench, soak=lambda: _soak(served, 60 * soak_minutes))
        if full:
            parts.update(shipped=served.shipped, http=served.over_http)
    except Exception as error:  # the other parts may still tell something
        findings["faults"].append(str(error))
    for name, part in parts.items():
        typer.echo(name, err=True)
        findings |= {"passed": False, "running": name}
        atomic.write_text(out, json.dumps(findings, indent=1) + "\n")  # what a crash leaves says where
        try:
            findings[name], faults = part()
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        findings["faults"] += [f"{name}: {fault}" for fault in faults]
    # none is loaded to find its version
    loaded = sys.modules.keys() & {"numpy", "onnxruntime", "tensorrt", "cuda.bindings", "pycuda"}
    findings["versions"] = {name: str(getattr(sys.modules[name], "__version__", "unknown")) for name in sorted(loaded)}
    findings |= {"passed": not findings["faults"], "running": None}
    atomic.write_text(out, json.dumps(findings, indent=1) + "\n")
    typer.echo(f"{'passed' if findings['passed'] else 'FAILED: ' + '; '.join(findings['faults'])}: {out}", err=True)
    raise typer.Exit(0 if findings["passed"] else 1)


def outcomes_of(junit: Path) -> Found:
    """Each test of a report of pytest's: passed, failed or skipped, why, and the figures that it recorded."""
    outcome_of = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        ended = next((child for child in case if child.tag in outcome_of), None)
        told = ["passed"] if ended is None else [outcome_of[ended.tag], *(ended.get("message") or "").splitlines()[:1]]
        told += [f"{one.get('name')} {one.get('value')}" for one in case.iter("property")]
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = ": ".join(told)
    return outcomes, [f"{name}: {said}" for name, said in outcomes.items() if said.startswith("failed")]


@dataclass(frozen=True, kw_only=True)
class _Served:
    """Each method is a part of the report."""

    bundle: Bundle
    choice: Choice
    num_slots: int
    num_threads: int | None

    def parity(self) -> Found:
        report = self._compared(self.bundle, str(self.choice))
        return report.as_json(), list(map(str, report.breaks))

    def shipped(self) -> Found:
        """The gates that each shipped bundle breaks over its golden traces, by bundle and precision."""
        found: dict[str, list[str]] = {}
        for bundle in map(Bundle.open, sorted(SHIPPED_BUNDLES.glob("*.bundle"))):
            for precision in bundle.manifest.precisions:
                engine = f"{self.choice.engine}:{precision}"
                try:
                    breaks = list(map(str, self._compared(bundle, engine).breaks))
                except Exception as error:
                    breaks = [str(error)]
                found[f"{bundle.manifest.name} {engine}"] = breaks
        return found, [f"{name}: {breaks[0]}" for name, breaks in found.items() if breaks]

    def bench(self) -> Found:
        """Median time of a segment for each batch, with every active slot on a real puzzle."""
        golden = self.bundle.golden()
        with closing(self.opened()) as engine:
            for slot in range(engine.num_slots):
                puzzle = slot % len(golden.tokens_BT)
                engine.load(slot, golden.tokens_BT[puzzle], self.bundle.puzzle_table[golden.puzzle_ids_B[puzzle]])
            times = {
                batch: round(median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=MIN_STEPS), 3)
                for batch in buckets_for(engine.num_slots)
            }
        return {"step_ms": times}, []

    def over_http(self) -> Found:
        """Capacity and latencies of hrm-serve under load, as hrm-bench measures them."""
        if importlib.util.find_spec("aiohttp") is None:
            return {"skipped": "hrm-bench needs aiohttp: run pip install 'hrm-edge[bench]'"}, []
        options = ("--bundle", str(self.bundle.path), "--engine", str(self.choice), "--slots", str(self.num_slots))
        seconds = ("--seconds", str(HTTP_S), "--saturation-s", str(HTTP_S), "--share", "0.8")
        command = [sys.executable, "-c", BENCH, "load", *options, *seconds, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return None, [(done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]]
        return json.loads(done.stdout), []

    def opened(self) -> Engine:
        return engine_for(self.bundle, engine=str(self.choice), num_slots=self.num_slots, num_threads=self.num_threads)

    def _compared(self, bundle: Bundle, engine: str) -> Comparison:
        from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

        return compare_engines(bundle, ParityOptions(engine=engine, slots=self.num_slots, threads=self.num_threads))


def _soak(served: _Served, soak_s: float) -> Found:
    """Solve the golden puzzles over and over; answers may change, since other batch sizes may round differently."""
    counts, first, samples = Counter[str](), dict[int, bytes](), list[dict[str, Any]]()
    num_puzzles = len(served.bundle.golden().tokens_BT)
    with closing(served.opened()) as engine:
        lane = Lane(engine, served.bundle.puzzle, queue_limit=engine.num_slots)
        began_s = sampled_s = time.monotonic()
        for result in run_all(lane, _attempts(served, until_s=began_s + soak_s)):
            answer = b"" if result.answer_T is None else result.answer_T.tobytes()
            counts["puzzles"] += 1
            counts["changed"] += first.setdefault(result.attempt_id % num_puzzles, answer) != answer
            counts["failed"] += result.halted_by == "failed"
            counts["verified"] += result.verified is True
            counts["segments"] += result.segments
            now_s = time.monotonic()
            if not samples or now_s - sampled_s >= SAMPLE_EVERY_S:
                samples.append(_sample(now_s - began_s, lane))
                sampled_s = now_s
        samples.append(_sample(time.monotonic() - began_s, lane))
    growth_mb, seconds = (samples[-1]["rss_mb"] or 0) - (samples[1]["rss_mb"] or 0), samples[-1]["at_s"]
    faults = [f"{counts['failed']} puzzles came back without an answer"] if counts["failed"] else []
    faults += [f"the process grew by {growth_mb} MB while it soaked"] if growth_mb > MAX_GROWTH_MB else []
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


def _attempts(served: _Served, *, until_s: float) -> Iterator[Attempt]:
    golden, table = served.bundle.golden(), served.bundle.puzzle_table
    num_puzzles, policy = len(golden.tokens_BT), served.bundle.manifest.halting_policy(served.choice.precision)
    for number in itertools.takewhile(lambda n: n < num_puzzles or time.monotonic() < until_s, itertools.count()):
        yield Attempt(
            attempt_id=number,
            tokens_T=golden.tokens_BT[number % num_puzzles],
            puzzle_vector_E=table[golden.puzzle_ids_B[number % num_puzzles]],
            policy=policy,
            arrival_s=time.monotonic(),
        )


def _sample(at_s: float, lane: Lane) -> dict[str, Any]:
    machine = memory.read_memory()
    clocks = [str(clock.now_hz // 10**6) for clock in board.Host().gpu_clocks()]
    return {
        "at_s": round(at_s, 1),
        "step_ms": round(1e3 * lane.counters.mean_step_s, 3),
        "rss_mb": memory.resident_bytes() // memory.MIB or None,
        "available_mb": None if machine is None else machine.available_mb,
        "temperature_c": board.Host().hottest_c(),
        "gpu_mhz": clocks[-1] if clocks else None,
    }


if __name__ == "__main__":
    app()
