"""What `hrm-bench` does; `cli.py` is its door."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_benchmarks import accuracy_command
from hrm_benchmarks import segments as segments_bench
from hrm_benchmarks.benches import Bench, bundle_bench, measure, questions_for, scripted_bench
from hrm_benchmarks.costs import Cost
from hrm_benchmarks.report import as_json, paper, print_table
from hrm_benchmarks.serving import commands as serving
from hrm_edge_runtime.batching.halting import PolicyKind
from hrm_edge_runtime.bundle import Bundle, find_bundle

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
serving.register(app)


@app.callback()
def bench() -> None:
    """Measure what serving and training cost, beside honest baselines."""


@app.command(epilog="Example: hrm-bench serve --bundle model.bundle --csv test.csv --puzzles 64 --slots 4")
def serve(
    bundle: Annotated[str | None, typer.Option(help="Engine to measure: a bundle's directory or shipped name.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Bundle: puzzles in Sudoku-Extreme form; else generated.")] = None,
    difficulty: Annotated[str | None, typer.Option(help="Bundle: of generated puzzles; else the easiest.")] = None,
    precision: Annotated[str, typer.Option(help="Bundle: which of its graphs.")] = "fp32",
    policy: Annotated[PolicyKind | None, typer.Option(help="Bundle: halting rule; else its own.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Bundle: threads of the engine, under every policy.")] = 1,
    cpu_clock: Annotated[bool, typer.Option(help="Bundle: count CPU seconds, for a machine with other work.")] = False,
    segments: Annotated[str, typer.Option(help="Script: geo3 geo5 geo8 bim3 bim5 bim8, or a recorded JSON.")] = "geo5",
    step_ms: Annotated[float, typer.Option(min=0, help="Script: what a step costs.")] = 20.0,
    cost: Annotated[Cost, typer.Option(help="Script: how that grows with the rows of a step.")] = "flat",
    virtual_time: Annotated[bool, typer.Option(help="Script: count the time instead of spending it.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="Slots; the batch of the policies that batch.")] = 8,
    puzzles: Annotated[int, typer.Option(min=1, help="How many, the same under every policy.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often; figures are medians.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and scripts.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Serve the same puzzles under five policies: refill, fixed, wait for the slowest, compaction, one at a time.

    Without --bundle a scripted engine stands in for the model, so that the figures are the batching's own.
    """
    settings = dict[str, object](locals())
    try:
        if bundle is None:
            made = scripted_bench(
                segments=segments,
                num_puzzles=puzzles,
                num_slots=slots,
                step_ms=step_ms,
                cost=cost,
                virtual=virtual_time,
                seed=seed,
            )
        else:
            opened = Bundle.open(find_bundle(bundle))
            rule = opened.manifest.halting_policy()
            made = bundle_bench(
                opened,
                questions_for(opened, csv, difficulty, puzzles, seed),
                precision=precision,
                policy=replace(rule, kind=policy or rule.kind),
                num_slots=slots,
                num_threads=threads,
                cpu_clock=cpu_clock,
            )
    except ValueError as error:
        print(f"hrm-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    _run(made, settings, rounds, as_table=not json)


def _run(made: Bench, settings: dict[str, object], rounds: int, *, as_table: bool) -> None:
    progress = Console(stderr=True)
    outcome = measure(made, rounds=rounds, tell=lambda line: progress.print(line, style="dim"))
    made.engine.close()
    if as_table:
        print_table(made.title, outcome.by_policy, paper())
    else:
        print(as_json({"title": made.title, **settings}, outcome.by_policy, outcome.histograms))


@app.command(epilog="Example: hrm-bench segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: Annotated[str | None, typer.Option(help="Bundle's directory or shipped name; else the default.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="ENGINE[:PRECISION], may be repeated; else cpu in each precision.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Also PyTorch, eager and compiled, with its weights.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Puzzles in a step, may be repeated. [1, 8]")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="How often each takes its turn; figures are medians.")] = 9,
    turn_s: Annotated[float, typer.Option(min=0, help="Seconds of one turn, at least a step.")] = 0.5,
    cpu_clock: Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Time one segment on every engine in turns, and show by operator where a CPU's time goes."""
    settings = dict[str, object](locals())
    progress, batches = Console(stderr=True), batch or [1, 8]
    try:
        path = find_bundle(bundle)
        opened = Bundle.open(path)
        engines = engine or [f"cpu:{precision}" for precision in opened.manifest.precisions]
        all_of = segments_bench.entries(path, engines, batches, num_threads=threads, checkpoint=checkpoint)
        costs = segments_bench.measure(
            all_of,
            rounds=rounds,
            turn_s=turn_s,
            cpu_clock=cpu_clock,
            tell=lambda line: progress.print(line, style="dim"),
        )
        operators = {
            precision: segments_bench.operator_ms(opened, precision, batches[-1], threads)
            for precision in opened.manifest.precisions
        }
    except ValueError as error:
        print(f"hrm-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    if json:
        print(segments_bench.as_json(settings, costs, operators))
        return
    clock = "CPU" if cpu_clock else "wall"
    title = f"{opened.manifest.name}, {threads} threads, {rounds} rounds, {clock} seconds"
    segments_bench.print_costs(title, costs, paper())
    segments_bench.print_operators(operators, paper())


@app.command(epilog="Example: hrm-bench train --preset small --threads 1 --rounds 9 --compile")
def train(
    preset: Annotated[str, typer.Option(help="Model size: small, log or published.")] = "small",
    puzzle: Annotated[str, typer.Option(help="Which puzzle; some are generated as training rows.")] = "sudoku",
    batch: Annotated[int, typer.Option(min=1, help="Rows of one update, under every trainer.")] = 32,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each; without it, all cores.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each takes its turn; figures are medians.")] = 9,
    turn_s: Annotated[float, typer.Option(min=0, help="Seconds of one turn, at least a step.")] = 1.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Our trainer also through torch.compile.")] = False,
    cpu_clock: Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of the table.")] = False,
) -> None:
    """Train by the published step, written plainly, and by our trainer, in turns and with equal losses."""
    settings = dict[str, object](locals())
    try:
        from hrm_benchmarks.desktop import contest, figures
    except ModuleNotFoundError as error:
        print(f"hrm-bench train needs {error.name}: run pip install 'hrm-edge[train,serve]'.", file=sys.stderr)
        raise typer.Exit(1) from error
    progress = Console(stderr=True)
    try:
        all_of = contest.contestants(preset, puzzle, batch_size=batch, num_threads=threads, compiled=compiled)
        turns = contest.measure(
            all_of, rounds=rounds, turn_s=turn_s, tell=lambda line: progress.print(line, style="dim")
        )
    except ValueError as error:
        print(f"hrm-bench: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    found = figures.speeds(all_of, turns, cpu_clock=cpu_clock)
    if json:
        print(figures.as_json(settings, found))
    else:
        clock = "CPU" if cpu_clock else "wall"
        title = f"{preset}, {puzzle}, batch {batch}, {all_of[0].num_threads} threads, {rounds} rounds, {clock} seconds"
        figures.print_speeds(title, found, paper())


app.command(epilog=accuracy_command.EXAMPLE)(accuracy_command.accuracy)
