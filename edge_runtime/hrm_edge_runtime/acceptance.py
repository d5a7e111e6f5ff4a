"""One command that says whether a device does what it should: parity, a bench, a soak, and one JSON of it all.

    python3 -m hrm_edge_runtime.acceptance model.bundle --soak-minutes 30 --out acceptance.json

Made for a Jetson (`make check-jetson`) and a card (`make check-gpu`), where it has not been run yet; it runs on any
engine. It fails where parity breaks its gates, where a puzzle comes back without an answer, and where the process grows
while it soaks; a refusal is in the JSON too. The power mode, clocks and temperature are recorded beside the times,
since they decide them.
"""

import itertools
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer

from hrm_edge_runtime.batching.lane import Lane, run_all
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES, Bundle, Golden, find_bundle
from hrm_edge_runtime.engines.engine import Engine, EngineLostError, median_step_ms
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare
from hrm_edge_runtime.engines.trt.cache import buckets_for
from hrm_host import atomic, board, command, memory
from hrm_host.doctor.cli import try_device

MEASURE_S, MIN_STEPS = 2.0, 20
SAMPLE_EVERY_S = 5.0
MAX_GROWTH_MB = 64

app = command.Command(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python3 -m hrm_edge_runtime.acceptance model.bundle --engine tensorrt:fp16")
@command.refusing("acceptance")
def accept_command(
    bundle: Annotated[
        str | None, typer.Argument(help="Bundle directory or the name of a shipped one; without it the default.")
    ] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "auto",
    slots: Annotated[int, typer.Option(min=1, max=64, help="Puzzles in one batch.")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on a CPU; without it, all cores.")] = None,
    soak_minutes: Annotated[float, typer.Option(min=0, help="How long the device solves without a pause.")] = 10.0,
    full: Annotated[
        bool, typer.Option("--full", help="Also try TensorRT step by step, and every shipped bundle and precision.")
    ] = False,
    tests: Annotated[
        Path | None, typer.Option(help="What pytest --junitxml wrote, to be kept with the findings.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the findings go.")] = Path("acceptance.json"),
) -> None:
    """Check parity, speed and endurance on this device; exits with 1 where one fails."""
    findings: dict[str, Any]
    try:
        opened = Bundle.open(find_bundle(bundle))
        choice = prepare(opened, engine, num_slots=slots, to_judge=True)
        findings = accept(opened, choice, num_slots=slots, num_threads=threads, soak_s=60 * soak_minutes)
        if full:
            typer.echo("every shipped bundle in every precision", err=True)
            findings["shipped"] = shipped_breaks(choice.engine, num_slots=slots, num_threads=threads)
            findings["faults"] += [f"{name}: {found[0]}" for name, found in findings["shipped"].items() if found]
    except (ValueError, EngineLostError) as error:
        findings = {"faults": [str(error)]}
    if full:
        findings["steps"] = try_device()
    if tests is not None:
        findings["tests"] = outcomes_of(tests)
        findings["faults"] += [f"{name}: {said}" for name, said in findings["tests"].items() if said == "failed"]
    findings["passed"] = not findings["faults"]
    atomic.write_text(out, json.dumps(findings, indent=1) + "\n")
    typer.echo(f"{'passed' if findings['passed'] else 'FAILED: ' + '; '.join(findings['faults'])}: {out}", err=True)
    raise typer.Exit(0 if findings["passed"] else 1)


def accept(bundle: Bundle, choice: Choice, *, num_slots: int, num_threads: int | None, soak_s: float) -> dict[str, Any]:
    """Run parity, bench and soak; the findings list what is wrong under `faults`."""
    from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

    typer.echo(f"{bundle.manifest.name} on {choice}: parity with PyTorch's golden traces", err=True)
    parity = compare_engines(bundle, ParityOptions(engine=str(choice), slots=num_slots, threads=num_threads)).as_json()
    with closing(engine_for(bundle, engine=str(choice), num_slots=num_slots, num_threads=num_threads)) as engine:
        typer.echo("bench", err=True)
        bench = _bench(bundle, engine)
        typer.echo(f"soak of {soak_s:.0f} s", err=True)
        soak = _soak(bundle, choice, engine, soak_s)
    # none is loaded to find its version
    loaded = ((name, sys.modules.get(name)) for name in ("numpy", "onnxruntime", "tensorrt", "cuda.bindings", "pycuda"))
    versions = {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded if module is not None}
    return {
        "faults": [*parity["breaks"], *soak["faults"]],
        "bundle": {"name": bundle.manifest.name, "provenance": bundle.manifest.provenance},
        "engine": {"choice": str(choice), "slots": num_slots, "versions": versions},
        "device": {**board.Host().facts(), "machine": platform.machine(), "python": platform.python_version()},
        "parity": parity,
        "bench": bench,
        "soak": soak,
    }


def shipped_breaks(engine: str, *, num_slots: int, num_threads: int | None) -> dict[str, list[str]]:
    """The gates that each shipped bundle breaks over its golden traces, by bundle and precision."""
    from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

    found: dict[str, list[str]] = {}
    for path in sorted(SHIPPED_BUNDLES.glob("*.bundle")):
        bundle = Bundle.open(path)
        for precision in bundle.manifest.precisions:
            options = ParityOptions(engine=f"{engine}:{precision}", slots=num_slots, threads=num_threads)
            try:
                breaks = list(map(str, compare_engines(bundle, options).breaks))
            except (ValueError, EngineLostError) as error:
                breaks = [str(error)]
            found[f"{bundle.manifest.name} {options.engine}"] = breaks
    return found


def outcomes_of(junit: Path) -> dict[str, str]:
    """Each test of a report of pytest's: passed, failed or skipped."""
    cases = ElementTree.parse(junit).iter("testcase")
    outcome_of = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return {
        f"{case.get('classname')}.{case.get('name')}": next(
            (outcome_of[child.tag] for child in case if child.tag in outcome_of), "passed"
        )
        for case in cases
    }


def _bench(bundle: Bundle, engine: Engine) -> dict[str, Any]:
    """Median time of a segment for each batch, with every active slot on a real puzzle."""
    golden = bundle.golden()
    for slot in range(engine.num_slots):
        puzzle = slot % len(golden.tokens_BT)
        engine.load(slot, golden.tokens_BT[puzzle], bundle.puzzle_table[golden.puzzle_ids_B[puzzle]])
    times = {
        batch: round(median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=MIN_STEPS), 3)
        for batch in buckets_for(engine.num_slots)
    }
    return {"step_ms": times}


def _soak(bundle: Bundle, choice: Choice, engine: Engine, soak_s: float) -> dict[str, Any]:
    """Solve the golden puzzles over and over, at least once each, and watch the machine.

    Results are counted and dropped: a soak that kept them would grow by itself. `changed_answers` are not faults:
    batches of different sizes have kernels of their own, which may round differently.
    """
    lane = Lane(engine, bundle.puzzle, queue_limit=engine.num_slots)
    counts, first, samples = Counter[str](), dict[int, bytes](), list[dict[str, Any]]()
    golden = bundle.golden()
    num_puzzles = len(golden.tokens_BT)
    began_s = sampled_s = time.monotonic()
    for result in run_all(lane, _attempts(bundle, golden, choice.precision, until_s=began_s + soak_s)):
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
    return {
        "faults": faults,
        "seconds": seconds,
        "puzzles": counts["puzzles"],
        "puzzles_per_s": round(counts["puzzles"] / max(seconds, 0.1), 2),
        "verified": counts["verified"],
        "mean_segments": round(counts["segments"] / counts["puzzles"], 3),
        "changed_answers": counts["changed"],
        "growth_mb": growth_mb,
        "samples": samples,
    }


def _attempts(bundle: Bundle, golden: Golden, precision: str, *, until_s: float) -> Iterator[Attempt]:
    num_puzzles, policy = len(golden.tokens_BT), bundle.manifest.halting_policy(precision)
    for number in itertools.takewhile(lambda n: n < num_puzzles or time.monotonic() < until_s, itertools.count()):
        yield Attempt(
            attempt_id=number,
            tokens_T=golden.tokens_BT[number % num_puzzles],
            puzzle_vector_E=bundle.puzzle_table[golden.puzzle_ids_B[number % num_puzzles]],
            policy=policy,
            arrival_s=time.monotonic(),
        )


def _sample(at_s: float, lane: Lane) -> dict[str, Any]:
    """The machine at one moment; None where it does not say."""
    machine = memory.read_memory()
    clocks = [str(clock.now_hz // 10**6) for clock in board.Host().gpu_clocks()]
    return {
        "at_s": round(at_s, 1),
        "step_ms": round(1e3 * lane.mean_step_s, 3),
        "rss_mb": memory.resident_bytes() // memory.MIB or None,
        "available_mb": None if machine is None else machine.available_mb,
        "temperature_c": board.Host().hottest_c(),
        "gpu_mhz": clocks[-1] if clocks else None,
    }


if __name__ == "__main__":
    app()
