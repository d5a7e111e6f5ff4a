"""hrm-export: a checkpoint becomes a bundle, compared with PyTorch before it is written.

hrm-export runs/sudoku/best --out sudoku.bundle
hrm-export runs/sudoku/best --out sudoku.bundle --data data/sudoku --policy learned --threshold 0.5
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from hrm_edge_runtime.batching.halting import HaltingPolicy, PolicyKind
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.parity import ParityReport
from hrm_export.golden import Questions, generated_questions, golden_traces, held_out_questions
from hrm_export.packing import Contents, num_parameters, write_bundle
from hrm_export.segment import segment_graph
from hrm_model import checkpoint
from hrm_model.hrm import HRM
from hrm_puzzles import datasets, registry
from hrm_puzzles.puzzle import Puzzle

app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console()

MEASURED_BATCHES = (1, 8)
MEASURE_S = 0.5
CANDIDATES = 4
"""Puzzles tried for each golden trace, since not every trace survives rounding."""


@app.command(epilog="Example: hrm-export runs/sudoku/best --out sudoku.bundle --data data/sudoku")
def export(
    source: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or a run's file latest or best.")],
    out: Annotated[Path, typer.Option(help="Bundle directory to make; it must not exist.")],
    name: Annotated[str | None, typer.Option(help="Name of the model; without it, that of the directory.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="When to stop: verified, learned or fixed; verified where a proof exists.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Halting margin above which the model stops.")] = 0.0,
    max_segments: Annotated[
        int | None, typer.Option(min=1, help="Segments a puzzle may run; without it, as many as in training.")
    ] = None,
    puzzles: Annotated[int, typer.Option(min=1, help="Puzzles to compare on, at most.")] = 16,
    data: Annotated[
        Path | None, typer.Option(help="Data set whose test split gives the puzzles; else they are generated.")
    ] = None,
) -> None:
    """Make a bundle: step graph, puzzle table and golden traces, compared with PyTorch over all segments."""
    try:
        contents = _contents(
            checkpoint.resolve(source), name or out.stem, policy, threshold, max_segments, puzzles, data
        )
        report = write_bundle(out, contents)
        _print_summary(out, contents, report)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"hrm-export: {error}\n")
        raise typer.Exit(1) from error


def main() -> None:
    """Entry point of `hrm-export`."""
    app()


def _contents(
    source: Path,
    name: str,
    policy: str | None,
    threshold: float,
    max_segments: int | None,
    num_puzzles: int,
    data: Path | None,
) -> Contents:
    model, meta = checkpoint.load(source)
    puzzle = _puzzle_of(model, meta.get("puzzle"), source)
    kind = policy or ("verified" if puzzle.proof_exists else "learned")
    trained_segments = model.config.max_segments
    limit = max_segments or trained_segments
    if model.config.arch == "transformer" and limit > 1:
        raise ValueError(f"--max-segments {limit} asks a transformer to go on, which it cannot; leave the option away")
    model.config = dataclasses.replace(model.config, max_segments=min(limit, trained_segments))  # what traces cover
    questions = _questions(model, puzzle, data, CANDIDATES * num_puzzles)
    golden, num_candidates = golden_traces(model, questions, threshold, num_puzzles)
    return Contents(
        name=name,
        model=model,
        graph=segment_graph(model),
        puzzle=puzzle,
        policy=HaltingPolicy(
            kind=cast("PolicyKind", kind),
            threshold=threshold,
            max_segments=limit,
        ),
        golden=golden,
        num_candidates=num_candidates,
        identifiers=_identifiers(model, data),
        meta={"checkpoint": source.name, **meta},
    )


def _puzzle_of(model: HRM, name: object, source: Path) -> Puzzle:
    if not isinstance(name, str):
        raise ValueError(f"{source} does not say its puzzle ({name!r}); write it again with hrm-train or hrm-import")
    puzzle = registry.get(name)
    found, expected = (model.config.seq_len, model.config.vocab_size), (puzzle.seq_len, puzzle.vocab_size)
    if found != expected:
        raise ValueError(
            f"{source} has {found[0]} positions of {found[1]} tokens but {name} has {expected[0]} of {expected[1]}; "
            "export it with the version of the puzzle it was trained on"
        )
    return puzzle


def _questions(model: HRM, puzzle: Puzzle, data: Path | None, count: int) -> Questions:
    if data is None:
        return generated_questions(puzzle, count)
    questions = held_out_questions(data, count)
    config = model.config
    fits = questions.tokens_BT.shape[1] == config.seq_len and questions.tokens_BT.max() < config.vocab_size
    if not fits or questions.puzzle_ids_B.max() >= config.num_puzzle_ids:
        raise datasets.DatasetError(f"{data} does not fit the checkpoint; give the data set it was trained on")
    return questions


def _identifiers(model: HRM, data: Path | None) -> list[str]:
    """Names of the puzzle table's rows, in its order."""
    expected = model.config.num_puzzle_ids
    if data is None and expected > 1:
        raise ValueError(
            f"the puzzle table has {expected} rows whose names only the data set knows; give it with --data"
        )
    names = [datasets.BLANK_IDENTIFIER] if data is None else json.loads((data / "identifiers.json").read_text())
    if len(names) != expected:
        raise ValueError(f"{data} names {len(names)} puzzles but the table has {expected} rows; give its own data set")
    return names


def _print_summary(out: Path, contents: Contents, report: ParityReport) -> None:
    bundle = Bundle.open(out)
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    graph_name = bundle.manifest.precisions["fp32"]
    table = Table(title=f"{out} ({contents.puzzle.name})", show_header=False, title_justify="left")
    table.add_row("bundle", f"{sum(sizes.values()):,} bytes in {len(sizes)} files")
    table.add_row("graph", f"{sizes[graph_name]:,} bytes, {len(contents.graph.graph.node):,} nodes")
    table.add_row("parameters", f"{num_parameters(contents.model):,}")
    table.add_row("halting", f"{contents.policy.kind}, threshold {contents.policy.threshold:g}")
    table.add_row("compared on", _compared_on(contents, report))
    table.add_row("largest logit gap", f"{report.max_logit_gap:.1e}, same answers, same halting")
    for batch in MEASURED_BATCHES:
        table.add_row(f"segment, batch {batch}", f"{_segment_ms(bundle, batch):.2f} ms on this machine")
    console.print(table)


def _compared_on(contents: Contents, report: ParityReport) -> str:
    puzzles = f"{report.num_puzzles} of {contents.num_candidates} puzzles (others may amplify rounding)"
    return f"{puzzles}, all {len(report.logit_gap_by_segment)} segments"


def _segment_ms(bundle: Bundle, batch: int) -> float:
    """Median over about MEASURE_S of whole steps with every slot in use, all cores."""
    engine = engine_from_bundle(bundle, num_slots=batch)
    golden = bundle.golden()
    for slot in range(batch):
        engine.load(slot, golden.tokens_BT[slot % len(golden.tokens_BT)], bundle.puzzle_table[0])
    engine.step(batch)
    times_s: list[float] = []
    while len(times_s) < 5 or sum(times_s) < MEASURE_S:
        started = time.perf_counter()
        engine.step(batch)
        times_s.append(time.perf_counter() - started)
    engine.close()
    return 1000 * median(times_s)


if __name__ == "__main__":
    main()
