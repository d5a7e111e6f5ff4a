"""Acceptance of a device: parity, speed, a soak test, and one JSON file with all findings.

    python3 -m hrm_parity.acceptance model.bundle --soak-minutes 30 --out acceptance.json

Made for a Jetson (`make check-jetson`), where it has not run yet, and for a graphics card
(`make check-gpu`); it runs on any engine. It fails if parity breaks, a puzzle gets no answer, or
the process grows. A part that fails does not stop the others.
"""

import itertools
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES, open_bundle
from hrm_edge_runtime.engines.engine import Engine, load_blanks, median_step_ms
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.engines.trt.engine import buckets_for
from hrm_host import atomic, command, machine, memory
from hrm_host.reading import counted
from hrm_parity import BUILD_COMMAND
from hrm_parity.cli import Comparison, ParityOptions, compare_engines
from hrm_parity.device import try_device
from hrm_parity.walk import attempts_of, golden_questions

MEASURE_S = 2.0
MIN_STEPS = 20
SAMPLE_EVERY_S = 5.0
MAX_GROWTH_MB = 64  # growth of the process during the soak
REPORTED_VERSIONS = ("cuda.bindings", "numpy", "onnxruntime", "pycuda", "tensorrt")

Found = tuple[Any, list[str]]
"""The findings of a part, and its faults."""

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
    threads: command.Threads = None,
    soak_minutes: Annotated[float, typer.Option(min=0, help="Minutes of the soak test.")] = 10.0,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also check TensorRT step by step and every shipped bundle."),
    ] = False,
    out: Annotated[Path, typer.Option(help="JSON file for the report.")] = Path("acceptance.json"),
) -> None:
    """Check parity, speed and endurance on this device; exits with 1 if one fails."""
    report = _Report(out)
    if full:
        report.run("steps", lambda: (try_device(), []))
    try:
        opened = open_bundle(bundle)
        choice = prepare(
            opened, engine, num_slots=slots, build_command=BUILD_COMMAND, to_judge=True
        )
        served = _Served(bundle=opened, choice=choice, num_slots=slots, num_threads=threads)
    except Exception as error:  # the device's steps may have found something
        report.faults.append(str(error))
    else:
        manifest = served.bundle.manifest
        description = {"name": manifest.name, "provenance": manifest.provenance}
        report.findings["bundle"] = description
        report.findings["engine"] = {"choice": str(served.choice), "slots": slots}
        report.run("parity", served.parity)
        report.run("bench", served.bench)
        report.run("soak", partial(_soak, served, 60 * soak_minutes))
        if full:
            report.run("shipped", served.shipped)
    report.finish()


class _Report:
    """The findings. They are saved before every part; after a crash `running` names that part."""

    def __init__(self, out: Path) -> None:
        facts = machine.Host().facts()
        facts |= {"machine": platform.machine(), "python": platform.python_version()}
        self.out = out
        self.faults: list[str] = []
        self.findings: dict[str, Any] = {"device": facts}

    def run(self, name: str, part: Callable[[], Found]) -> None:
        typer.echo(name, err=True)
        self._write(passed=False, running=name)
        try:
            self.findings[name], faults = part()
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        self.faults += [f"{name}: {fault}" for fault in faults]

    def finish(self) -> None:
        """Write the report and end the command: with 1 if there are faults."""
        versions: dict[str, str] = {}
        for name in REPORTED_VERSIONS:
            if name in sys.modules:
                versions[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
        self.findings["versions"] = versions
        self._write(passed=not self.faults, running=None)
        verdict = "passed"
        if self.faults:
            verdict = "FAILED: " + "; ".join(self.faults)
        typer.echo(f"{verdict}: {self.out}", err=True)
        typer.echo(f"{self._figures()}; {verdict}")
        raise typer.Exit(1 if self.faults else 0)

    def _figures(self) -> str:
        """Device, software, engine, speed and endurance in one line that an issue can quote."""
        parts: list[str] = []
        for facts in (self.findings["device"], self.findings["versions"]):
            parts.append(", ".join(f"{name} {value}" for name, value in facts.items()))
        if "engine" in self.findings:
            parts.append(self.findings["engine"]["choice"])
        if "bench" in self.findings:
            for slots, step_ms in self.findings["bench"]["step_ms"].items():
                parts.append(f"{step_ms} ms for {slots}")
        if "soak" in self.findings:
            soak = self.findings["soak"]
            counts = f"{soak['puzzles']} puzzles in {soak['seconds']} s"
            parts.append(f"{counts}, {soak['growth_mb']} MB more")
        return "; ".join(parts)

    def _write(self, *, passed: bool, running: str | None) -> None:
        state = {"faults": self.faults, "passed": passed, "running": running}
        content = {**self.findings, **state}
        atomic.write_text(self.out, json.dumps(content, indent=1) + "\n")


class _Served(NamedTuple):
    """A bundle on an engine; each method that returns Found is a part of the report."""

    bundle: Bundle
    choice: Choice
    num_slots: int
    num_threads: int | None

    def parity(self) -> Found:
        compared = self._compared(self.bundle, str(self.choice))
        return compared.as_json(), [str(one) for one in compared.breaks]

    def shipped(self) -> Found:
        """The gates that each shipped bundle breaks on its golden traces, by precision."""
        found: dict[str, list[str]] = {}
        for path in sorted(SHIPPED_BUNDLES.glob("*.bundle")):
            bundle = Bundle.open(path)
            for precision in bundle.manifest.precisions:
                engine = f"{self.choice.engine}:{precision}"
                try:
                    breaks = [str(one) for one in self._compared(bundle, engine).breaks]
                except Exception as error:
                    breaks = [str(error)]
                found[f"{bundle.manifest.name} {engine}"] = breaks
        return found, [f"{name}: {breaks[0]}" for name, breaks in found.items() if breaks]

    def bench(self) -> Found:
        """Median time of a segment per batch size; it does not depend on the puzzles."""
        times_ms: dict[int, float] = {}
        with closing(self.opened()) as engine:
            load_blanks(engine, self.bundle.puzzle_table[0])
            for batch in buckets_for(engine.num_slots):
                step_ms = median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=MIN_STEPS)
                times_ms[batch] = round(step_ms, 3)
        return {"step_ms": times_ms}, []

    def opened(self) -> Engine:
        return engine_for(
            self.bundle,
            engine=str(self.choice),
            num_slots=self.num_slots,
            num_threads=self.num_threads,
        )

    def attempts(self, until_s: float) -> Iterator[Attempt]:
        """The golden puzzles, each at least once, repeated until the monotonic time `until_s`."""
        questions = golden_questions(self.bundle.golden())
        more = itertools.takewhile(lambda _: time.monotonic() < until_s, itertools.cycle(questions))
        policy = self.bundle.manifest.halting_policy(self.choice.precision)
        asked = itertools.chain(questions, more)
        return attempts_of(asked, self.bundle.puzzle_table, policy)

    def _compared(self, bundle: Bundle, engine: str) -> Comparison:
        options = ParityOptions(engine=engine, slots=self.num_slots, threads=self.num_threads)
        return compare_engines(bundle, options)


def _soak(served: _Served, soak_s: float) -> Found:
    """Solve the golden puzzles over and over.

    Answers may change, because other batch sizes may round differently.
    """
    counts = Counter[str]()
    first_answers: dict[int, bytes] = {}
    samples: list[dict[str, Any]] = []
    with closing(served.opened()) as engine:
        lane = Lane(engine, served.bundle.puzzle, queue_limit=engine.num_slots)
        began_s = time.monotonic()
        for result in run_all(lane, served.attempts(until_s=began_s + soak_s)):
            answer = b"" if result.answer_T is None else result.answer_T.tobytes()
            counts["puzzles"] += 1
            counts["changed"] += answer != first_answers.setdefault(result.task_id, answer)
            counts["failed"] += result.halted_by == "failed"
            counts["verified"] += result.verified is True
            counts["segments"] += result.segments
            passed_s = time.monotonic() - began_s
            if not samples or passed_s - samples[-1]["at_s"] >= SAMPLE_EVERY_S:
                samples.append(_sample(passed_s, lane))
        samples.append(_sample(time.monotonic() - began_s, lane))
    first_mb = samples[1]["rss_mb"] or 0  # the first sample is from before the engine is warm
    growth_mb = (samples[-1]["rss_mb"] or 0) - first_mb
    seconds = samples[-1]["at_s"]
    faults: list[str] = []
    if counts["failed"]:
        faults.append(f"{counted(counts['failed'], 'puzzle')} got no answer")
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
    account = memory.read_memory()
    return {
        "at_s": round(at_s, 1),
        "step_ms": round(1e3 * lane.counters.mean_step_s, 3),
        "rss_mb": memory.resident_bytes() // memory.MIB or None,
        "available_mb": None if account is None else account.available_mb,
        "temperature_c": max(host.temperature_c().values(), default=None),
        "gpu_mhz": [now_mhz for now_mhz, _ in host.gpu_mhz()],
    }


if __name__ == "__main__":
    app()
