"""hrm-export: a checkpoint becomes a bundle, in the precisions asked for, each measured before it is written.

hrm-export runs/sudoku/best --out sudoku.bundle
hrm-export runs/sudoku/best --fp16 --int8 --calib data/sudoku --data data/sudoku
hrm-export --int8 --calib maze
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.bundle import Bundle
from hrm_export.contents import Contents, Options, bundle_name, contents_of, find_checkpoint, parse_loop
from hrm_export.packing import MEASURED_BATCHES, ExportedForm, segment_ms, write_bundle
from hrm_host.progress import stages_on

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
        with stages_on() as stages:
            contents = contents_of(options, stages)
            exported = write_bundle(options.out, contents, options, stages)
        _show(options.out, contents, exported, as_json=as_json)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"hrm-export: {error}\n")
        raise typer.Exit(1) from error
    if engine:  # in a process of its own, whose memory is free again when the engines are built
        build = [sys.executable, "-m", "hrm_edge_runtime.engines.trt.build", str(options.out)]
        raise typer.Exit(subprocess.run(build).returncode)


def main() -> None:
    """Entry point of `hrm-export`."""
    app()


def _show(out: Path, contents: Contents, exported: Sequence[ExportedForm], *, as_json: bool) -> None:
    bundle = Bundle.open(out)
    rows = [_figures(bundle, contents, one) for one in exported]
    policy, puzzle = exported[0].measured.policy, contents.served.puzzle.name
    if as_json:
        page = {
            "bundle": str(out),
            "name": contents.name,
            "puzzle": puzzle,
            "num_parameters": contents.num_parameters,
            "halting": {"policy": policy.kind, "max_segments": policy.max_segments},
            "num_held_out": len(contents.held_out),
            "precisions": rows,
        }
        print(json.dumps(page))
        return
    title = f"{out} ({puzzle}, {contents.num_parameters:,} parameters)"
    table = Table("", *(row["precision"] for row in rows), title=title, title_justify="left")
    columns = [_cells(row) for row in rows]
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "–") for column in columns))
    console, report = Console(), next(iter(exported[0].parity.values()))
    console.print(table)
    console.print(
        f"Halting {policy.kind}, at most {policy.max_segments} segments; {len(contents.held_out)} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of {report.num_puzzles} of "
        f"{exported[0].form.origin['num_candidates']} puzzles (others may amplify rounding). "
        "Times on this machine, all cores.",
        highlight=False,
        soft_wrap=True,
    )


def _figures(bundle: Bundle, contents: Contents, one: ExportedForm) -> dict[str, Any]:
    """One precision as the CPU runs it, its size as it travels; shares are of the held-out puzzles.

    `logit_gap` is the largest against PyTorch on the golden traces, `segment_ms` is by batch size on this machine.
    """
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    names, score = list(one.form.graphs), one.measured.score
    graph, table = bundle.graph_path(one.form.precision, device="cpu"), bundle.puzzle_table
    return {
        "precision": one.form.precision,
        "size_bytes": sizes[names[0]],
        "cpu_size_bytes": sizes[names[-1]] if one.form.cpu is not None else None,
        "ratio": sizes[names[0]] / sizes[bundle.manifest.precisions["fp32"]],
        "logit_gap": one.on_cpu.max_logit_gap,
        "exact": score.exact,
        "proven": score.proven,
        "mean_segments": score.mean_segments,
        "threshold": one.measured.policy.threshold,
        "lost": None if one.lost is None else one.lost["exact"].model_dump(),
        "segment_ms": {batch: segment_ms(graph, batch, contents.held_out, table) for batch in MEASURED_BATCHES},
    }


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """What a reader is shown of the figures, by its title."""
    lost = row["lost"] and [100 * row["lost"][name] for name in ("loss", "low", "high")]
    return {
        "file": f"{row['size_bytes']:,} bytes",
        "of fp32": f"{row['ratio']:.3f}",
        **({} if row["cpu_size_bytes"] is None else {"form for CPUs": f"{row['cpu_size_bytes']:,} bytes"}),
        "logit gap to PyTorch": f"{row['logit_gap']:.1e}",
        "exact solves": f"{100 * row['exact']:.1f} %",
        "points lost (95 %)": f"{lost[0]:.2f} ({lost[1]:.2f} to {lost[2]:.2f})" if lost else "–",
        "verified solves": f"{100 * row['proven']:.1f} %",
        "mean segments": f"{row['mean_segments']:.2f}",
        "halting threshold": f"{row['threshold']:.3g}",
        **{f"segment, batch {batch}": f"{time_ms:.2f} ms" for batch, time_ms in row["segment_ms"].items()},
    }


if __name__ == "__main__":
    main()
