"""The subcommands of `hrm-bench` that step an engine: serve, segment, limit, accuracy.

Imports at the top must not load ONNX Runtime or PyTorch.
"""

import itertools
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from hrm_benchmarks.command import (
    BundleOption,
    BundleOrScript,
    CpuClock,
    Csv,
    Easiest,
    EngineOption,
    Hardest,
    Measurement,
    Puzzles,
    Seed,
    Threads,
    TurnRounds,
    TurnS,
    in_table,
    measured,
    opened_bundle,
    questions_for,
)
from hrm_benchmarks.report import Rounds, Row, tell
from hrm_edge_runtime.contract.halting import PolicyKind

ATTEMPTS = (1, 4, 16, 64)
BATCHES = (1, 8)


@measured(
    "serve --bundle model.bundle --csv test.csv --puzzles 64 --slots 4",
    groups={
        "Bundle": "bundle csv difficulty precision policy threads cpu_clock",
        "Script": "segments step_ms cost virtual_time",
    },
)
def serve(
    bundle: BundleOrScript = None,
    csv: Csv = None,
    difficulty: Easiest = None,
    precision: Annotated[str, Option(help="Graph of the bundle: fp32, fp16 or int8.")] = "fp32",
    policy: Annotated[
        PolicyKind | None, Option(help="Halting policy. Default: the bundle's.")
    ] = None,
    threads: Threads = 1,
    cpu_clock: CpuClock = False,
    segments: Annotated[
        str,
        Option(help="Segments per puzzle: geo3, geo5, geo8, bim3, bim5, bim8, or a JSON file."),
    ] = "geo5",
    step_ms: Annotated[
        float, Option(min=0, help="Milliseconds per step of the scripted engine.")
    ] = 20.0,
    cost: Annotated[
        Literal["flat", "half", "linear"],
        Option(help="Cost of a step: flat, linear in its rows, or half of each."),
    ] = "flat",
    virtual_time: Annotated[bool, Option(help="Simulate step times instead of waiting.")] = False,
    slots: Annotated[
        int, Option(min=1, help="Number of slots, and batch size of the batching policies.")
    ] = 8,
    puzzles: Puzzles = 200,
    rounds: Annotated[int, Option(min=1, help="Rounds; figures are medians.")] = 1,
    seed: Seed = 0,
) -> Measurement:
    """Serve the same puzzles by five policies: refill, fixed, slowest, compaction, one at a time.

    Without --bundle a scripted engine replaces the model, so that only the batching counts.
    """
    from hrm_benchmarks import policies
    from hrm_benchmarks.scripted import RealClock, Scripted, VirtualClock

    if bundle is None:
        script = Scripted(
            segments=segments, puzzles=puzzles, slots=slots, step_ms=step_ms, cost=cost, seed=seed
        )
        clock = VirtualClock() if virtual_time else RealClock()
        made = policies.scripted_bench(script, clock)
    else:
        opened = opened_bundle(bundle)
        questions = questions_for(opened, csv, difficulty, puzzles, seed)
        made = policies.bundle_bench(
            opened,
            questions,
            precision=precision,
            kind=policy,
            num_slots=slots,
            num_threads=threads,
            cpu_clock=cpu_clock,
        )
    runs = policies.measure(made, rounds=rounds)
    made.engine.close()
    show = partial(policies.print_figures, made.title, runs)
    return Measurement(figures={"runs": runs}, show=show, title=made.title)


@measured("segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleOption = None,
    engine: Annotated[
        list[str] | None,
        Option(help="ENGINE[:PRECISION]; may be repeated. Default: cpu in every precision."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        Option(help="Also time PyTorch, eager and compiled, with this checkpoint."),
    ] = None,
    batch: Annotated[
        list[int] | None, Option(min=1, help="Batch size; may be repeated. Default: 1 and 8.")
    ] = None,
    threads: Threads = 1,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 0.5,
    cpu_clock: CpuClock = False,
) -> Measurement:
    """Time one segment on every engine, alternating between engines."""
    from hrm_benchmarks import segments

    opened = opened_bundle(bundle)
    manifest = opened.manifest
    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    engines = engine or [f"cpu:{precision}" for precision in manifest.precisions]
    runs = segments.measure(
        opened, engines, batch or BATCHES, turns, num_threads=threads, checkpoint=checkpoint
    )
    title = f"{manifest.name}, {threads} threads, {turns.title}"
    return in_table(
        "runs", runs, segments.COLUMNS, title=title, caption=segments.CAPTION, left=["engine"]
    )


@measured("limit --bundle sudoku --bundle maze --batch 1 --batch 8", extra="export,serve,bench")
def limit(
    bundle: Annotated[
        list[str] | None,
        Option(help="Bundle directory or shipped name; may be repeated. Default: all shipped."),
    ] = None,
    batch: Annotated[
        list[int] | None, Option(min=1, help="Batch size; may be repeated. Default: 1 and 8.")
    ] = None,
    rounds: TurnRounds = 5,
    turn_s: TurnS = 0.3,
    cpu_clock: CpuClock = False,
) -> Measurement:
    """Compare the arithmetic of a segment with a large matrix product, on one thread."""
    from hrm_benchmarks import limit
    from hrm_edge_runtime.contract.shipped import shipped_bundles

    turns = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    rows: list[Row] = []
    for name in bundle or shipped_bundles():
        rows += limit.measure(opened_bundle(name), batch or BATCHES, turns)
    return in_table(
        "rows", rows, limit.COLUMNS, title=turns.title, caption=limit.LEGEND, left=["model"]
    )


@measured(
    "accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
    groups={"Puzzles": "questions board puzzles difficulty seed", "Engine": "engine slots threads"},
)
def accuracy(
    bundle: Annotated[
        list[str] | None,
        Option(help="Bundle directory or shipped name; may be repeated. Default: sudoku."),
    ] = None,
    questions: Annotated[
        Path | None,
        Option(
            help="Puzzle file: one per line, published CSV, or NDJSON. Default: generated puzzles."
        ),
    ] = None,
    board: Annotated[
        list[str] | None,
        Option(help="Board of the generated puzzles, such as 12x20; may be repeated."),
    ] = None,
    difficulty: Hardest = None,
    puzzles: Annotated[int, Option(min=1, help="Number of puzzles.")] = 100,
    seed: Seed = 0,
    attempts: Annotated[
        list[int] | None,
        Option(
            min=1,
            max=1024,
            help="Attempts per puzzle; may be repeated. Default: 1, 4, 16 and 64.",
        ),
    ] = None,
    max_segments: Annotated[
        int | None,
        Option(min=1, help="Maximum number of segments per attempt. Default: the model's."),
    ] = None,
    how: Annotated[str | None, Option(help="Method of every attempt: plain or hypotheses.")] = None,
    engine: EngineOption = "auto",
    slots: Annotated[int, Option(min=1, help="Attempts per batch.")] = 16,
    threads: Threads = 1,
) -> Measurement:
    """Solve the same puzzles with each model, and count the CPU time to a proven answer."""
    from hrm_benchmarks import accuracy

    models = [opened_bundle(name) for name in bundle or [None]]
    puzzle = accuracy.provable(models)
    limits = {"max_segments": max_segments, "how": how}
    levels: list[Row] = []
    for size in board or [None]:
        sized = accuracy.on_board(puzzle, size)
        if questions is not None:
            known = accuracy.puzzles_from_file(questions, sized, puzzles)
        else:
            hardest = sized.difficulties[-1]
            known = accuracy.generated(sized, difficulty or hardest, puzzles, seed)
        for model, num_attempts in itertools.product(models, attempts or ATTEMPTS):
            row = accuracy.measured(
                model,
                sized,
                known,
                num_attempts,
                engine=engine,
                num_slots=slots,
                num_threads=threads,
                limits=limits,
            )
            levels.append(row)
            tell(accuracy.PROGRESS.format(**row))
    at_most = f"up to {max_segments or 'all'} segments"
    title = f"{puzzle.name}, {puzzles} puzzles, {at_most}, {engine}, {threads} threads"
    return in_table(
        "levels", levels, accuracy.COLUMNS, title=title, caption=accuracy.LEGEND, left=["model"]
    )
