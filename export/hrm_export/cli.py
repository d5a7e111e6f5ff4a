"""hrm-export: a checkpoint becomes a bundle, in the precisions asked for, each measured before it is written.

hrm-export runs/sudoku/best --out sudoku.bundle
hrm-export runs/sudoku/best --fp16 --int8 --calib data/sudoku --data data/sudoku
hrm-export --int8 --calib maze
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from hrm_edge_runtime.batching.halting import HaltingPolicy, PolicyKind
from hrm_export import summary
from hrm_export.options import (
    Options,
    bundle_name,
    data_of,
    find_checkpoint,
    find_puzzles,
    identifiers_of,
    parse_loop,
    puzzle_of,
)
from hrm_export.packing import write_bundle
from hrm_export.results import Contents, Result
from hrm_export.segment import segment_graph
from hrm_host.atomic import require_free
from hrm_host.progress import Stages, stages_on
from hrm_model import checkpoint

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: hrm-export runs/sudoku/best --fp16 --int8 --calib sudoku --data data/sudoku")
def export(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or a run's file latest or best; else runs/CALIB/best."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Bundle directory to make, not there yet; else RUN.bundle.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; without it, that of the directory.")] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Add a float16 graph.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Calibrate; add an INT8 graph and its CPU form.")] = False,
    calib: Annotated[
        str | None, typer.Option(help="Puzzles: sudoku, maze, arc, logistics (made, or from --data), or a path.")
    ] = None,
    int8_budget: Annotated[
        float, typer.Option(min=0, help="Points INT8 may lose; inputs of the worst layers stay float until it holds.")
    ] = Options.int8_budget,
    cache: Annotated[Path | None, typer.Option(help="File that keeps the calibration for the next time.")] = None,
    report: Annotated[Path | None, typer.Option(help="Directory for the calibration's report and pictures.")] = None,
    loop: Annotated[
        str, typer.Option(help="host; or unrolled[=N] to add a graph of N segments that halts by itself.")
    ] = "host",
    engine: Annotated[bool, typer.Option("--engine", help="Build TensorRT engines for this machine's GPU.")] = False,
    policy: Annotated[
        str | None, typer.Option(help="When to stop: verified, learned or fixed; verified where a proof exists.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Halting margin above which the model stops; else chosen by the curve.")
    ] = None,
    max_segments: Annotated[
        int | None, typer.Option(min=1, help="Segments a puzzle may run; without it, as many as in training.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data set whose test split gives the held-out puzzles; else they are made.")
    ] = None,
    held_out: Annotated[int, typer.Option(min=1, help="Puzzles to measure every precision on, at most.")] = 2000,
    max_loss: Annotated[float, typer.Option(help="Points of exact solves a precision may lose against fp32.")] = 1.0,
    puzzles: Annotated[int, typer.Option(min=1, help="Golden puzzles to compare with PyTorch on, at most.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Make a bundle: step graphs, puzzle table and golden traces, measured and compared with PyTorch first."""
    try:
        source = find_checkpoint(source, calib)
        options = Options(
            source=source,
            out=out or Path(f"{bundle_name(source)}.bundle"),
            name=name,
            policy=policy,
            threshold=threshold,
            max_segments=max_segments,
            puzzles=puzzles,
            data=data,
            fp16=fp16,
            int8=int8,
            calib=calib,
            int8_budget=int8_budget,
            cache=cache,
            report=report,
            unrolled=parse_loop(loop),
            held_out=held_out,
            max_loss=max_loss,
        )
        with stages_on(Console(stderr=True)) as stages:
            contents = _contents(options, stages)
            results = write_bundle(options.out, contents, options, stages)
        _show(options.out, contents, results, as_json=as_json)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"hrm-export: {error}\n")
        raise typer.Exit(1) from error
    if engine:
        raise typer.Exit(_build_engines(options.out))


def main() -> None:
    """Entry point of `hrm-export`."""
    app()


def _contents(options: Options, stages: Stages) -> Contents:
    require_free(options.out)
    model, meta = checkpoint.load(checkpoint.resolve(options.source))
    config, puzzle = model.config, puzzle_of(model.config, meta.get("puzzle"), options.source)
    limit = options.max_segments or config.max_segments
    if config.arch == "transformer" and limit > 1:
        raise ValueError(f"--max-segments {limit} asks a transformer to go on, which it cannot; leave the option away")
    kind = options.policy or ("verified" if puzzle.proof_exists else "learned")
    policy = HaltingPolicy(kind=cast("PolicyKind", kind), threshold=options.threshold or 0.0, max_segments=limit)
    data = data_of(options, config)
    identifiers = identifiers_of(data, config.num_puzzle_ids)
    calibration, held_out = find_puzzles(options, config, puzzle, data, stages)
    model.config = dataclasses.replace(config, max_segments=min(limit, config.max_segments))  # what traces cover
    return Contents(
        name=options.name or options.out.stem,
        model=model,
        graph=segment_graph(model),
        puzzle=puzzle,
        policy=policy,
        calibration=calibration,
        held_out=held_out,
        identifiers=identifiers,
        meta={"checkpoint": checkpoint.resolve(options.source).name, **meta},
    )


def _show(out: Path, contents: Contents, results: list[Result], *, as_json: bool) -> None:
    rows = summary.rows_of(out, contents, results)
    if as_json:
        print(json.dumps(summary.as_json(out, contents, results, rows)))
    else:
        console = Console()
        console.print(summary.table(out, contents, rows))
        console.print(summary.footnote(contents, results), highlight=False, soft_wrap=True)


def _build_engines(out: Path) -> int:
    """In a process of its own, whose memory is free again when the engines are built."""
    return subprocess.run([sys.executable, "-m", "hrm_edge_runtime.engines.tensorrt.build", str(out)]).returncode


if __name__ == "__main__":
    main()
