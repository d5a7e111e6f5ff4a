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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from hrm_calibration.int8_report import Paired
from hrm_edge_runtime.batching.halting import HaltingPolicy, PolicyKind
from hrm_edge_runtime.bundle import Bundle
from hrm_export.contents import (
    Options,
    bundle_name,
    data_of,
    find_checkpoint,
    find_puzzles,
    identifiers_of,
    num_parameters,
    parse_loop,
    puzzle_of,
)
from hrm_export.packing import Contents, Result, write_bundle
from hrm_export.precisions import MEASURED_BATCHES, segment_ms
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
    rows = rows_of(out, contents, results)
    if as_json:
        print(json.dumps(_as_json(out, contents, results, rows)))
    else:
        console = Console()
        console.print(table(out, contents, rows))
        console.print(footnote(contents, results), highlight=False, soft_wrap=True)


def _build_engines(out: Path) -> int:
    """In a process of its own, whose memory is free again when the engines are built."""
    return subprocess.run([sys.executable, "-m", "hrm_edge_runtime.engines.trt.build", str(out)]).returncode


if __name__ == "__main__":
    main()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One precision as the CPU runs it, `size_bytes` and `ratio` as it travels; `segment_ms` by batch size.

    `logit_gap` is the largest against PyTorch on the golden traces, the shares are of the held-out puzzles.
    """

    precision: str
    size_bytes: int
    cpu_size_bytes: int | None
    ratio: float
    logit_gap: float
    exact: float
    proven: float
    mean_segments: float
    threshold: float
    lost: Paired | None
    segment_ms: dict[int, float]

    def cells(self) -> dict[str, str]:
        """What a reader is shown, by its title."""
        cpu = {} if self.cpu_size_bytes is None else {"form for CPUs": f"{self.cpu_size_bytes:,} bytes"}
        return {
            "file": f"{self.size_bytes:,} bytes",
            "of fp32": f"{self.ratio:.3f}",
            **cpu,
            "logit gap to PyTorch": f"{self.logit_gap:.1e}",
            "exact solves": f"{100 * self.exact:.1f} %",
            "points lost (95 %)": "–" if self.lost is None else _loss(self.lost),
            "verified solves": f"{100 * self.proven:.1f} %",
            "mean segments": f"{self.mean_segments:.2f}",
            "halting threshold": f"{self.threshold:.3g}",
            **{f"segment, batch {batch}": f"{shown:.2f} ms" for batch, shown in self.segment_ms.items()},
        }

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lost": None if self.lost is None else self.lost.model_dump()}


def rows_of(path: Path, contents: Contents, results: Sequence[Result]) -> list[Row]:
    """The rows of a finished bundle, each precision timed on this machine."""
    bundle = Bundle.open(path)
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    whole = sizes[bundle.manifest.precisions["fp32"]]
    return [_row(bundle, contents, result, sizes, whole) for result in results]


def _row(bundle: Bundle, contents: Contents, result: Result, sizes: dict[str, int], whole: int) -> Row:
    names, score = list(result.form.graphs), result.measured.score
    graph = bundle.graph_path(result.form.precision, device="cpu")
    return Row(
        precision=result.form.precision,
        size_bytes=sizes[names[0]],
        cpu_size_bytes=sizes[names[-1]] if result.form.cpu is not None else None,
        ratio=sizes[names[0]] / whole,
        logit_gap=result.parity[result.on_cpu].max_logit_gap,
        exact=score.exact,
        proven=score.proven,
        mean_segments=score.mean_segments,
        threshold=result.measured.policy.threshold,
        lost=None if result.lost is None else result.lost.exact,
        segment_ms={
            batch: segment_ms(graph, batch, contents.held_out, bundle.puzzle_table) for batch in MEASURED_BATCHES
        },
    )


def table(path: Path, contents: Contents, rows: Sequence[Row]) -> Table:
    """One column for each precision."""
    title = f"{path} ({contents.puzzle.name}, {num_parameters(contents.model):,} parameters)"
    shown = Table("", *(row.precision for row in rows), title=title, title_justify="left")
    columns = [row.cells() for row in rows]
    for name in dict.fromkeys(name for column in columns for name in column):
        shown.add_row(name, *(column.get(name, "–") for column in columns))
    return shown


def footnote(contents: Contents, results: Sequence[Result]) -> str:
    """What the figures of the table rest on."""
    policy, report = results[0].measured.policy, next(iter(results[0].parity.values()))
    tried = results[0].form.origin["num_candidates"]
    return (
        f"Halting {policy.kind}, at most {policy.max_segments} segments; {len(contents.held_out)} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of {report.num_puzzles} of "
        f"{tried} puzzles (others may amplify rounding). Times on this machine, all cores."
    )


def _as_json(path: Path, contents: Contents, results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    policy = results[0].measured.policy
    return {
        "bundle": str(path),
        "name": contents.name,
        "puzzle": contents.puzzle.name,
        "num_parameters": num_parameters(contents.model),
        "halting": {"policy": policy.kind, "max_segments": policy.max_segments},
        "num_held_out": len(contents.held_out),
        "precisions": [row.as_json() for row in rows],
    }


def _loss(lost: Paired) -> str:
    return f"{100 * lost.loss:.2f} ({100 * lost.low:.2f} to {100 * lost.high:.2f})"
