"""The options of hrm-export; what contradicts itself is refused here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from hrm_calibration import INT8_BUDGET


@dataclass(frozen=True, kw_only=True)
class Options:
    source: Annotated[
        Path | None,
        typer.Argument(metavar="CHECKPOINT", help="Checkpoint, or a run's file latest or best; else runs/CALIB/best."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Bundle directory to make, not there yet; else RUN.bundle.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the model; without it, that of the directory.")] = None
    board: Annotated[str | None, typer.Option(help="Puzzle of another size for relational weights, as 30x30.")] = None
    fp16: Annotated[bool, typer.Option("--fp16", help="Add a float16 graph.")] = False
    int8: Annotated[bool, typer.Option("--int8", help="Calibrate; add an INT8 graph and its CPU form.")] = False
    calib: Annotated[str | None, typer.Option(help="Calibrate on sudoku, maze, arc, logistics or a path.")] = None
    int8_budget: Annotated[float, typer.Option(min=0, help="Points of exact solves INT8 may lose.")] = 100 * INT8_BUDGET
    report: Annotated[Path | None, typer.Option(help="Directory for the calibration's report and pictures.")] = None
    loop: Annotated[str, typer.Option(help="host; unrolled[=N] adds a graph that halts by itself.")] = "host"
    build_engine: Annotated[bool, typer.Option("--build-engine", help="Build TensorRT engines for this GPU.")] = False
    policy: Annotated[str | None, typer.Option(help="verified, learned or fixed; verified where proofs exist.")] = None
    threshold: Annotated[float | None, typer.Option(help="Margin above which to stop; else the curve's.")] = None
    max_segments: Annotated[int | None, typer.Option(min=1, help="Segments a puzzle may run; else the model's.")] = None
    data: Annotated[Path | None, typer.Option(help="Data set of the held-out puzzles (test split); else made.")] = None
    held_out: Annotated[int, typer.Option(min=1, help="Puzzles to measure every precision on, at most.")] = 2000
    max_loss: Annotated[float, typer.Option(help="Points of exact solves a precision may lose against fp32.")] = 1.0
    budget_minutes: Annotated[float, typer.Option(min=0.1, help="Minutes for all this; it measures what fits.")] = 20.0
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where puzzles and traces run.")] = "auto"
    golden: Annotated[int, typer.Option(min=1, help="Golden puzzles to compare with PyTorch on, at most.")] = 16
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False

    def __post_init__(self) -> None:
        parse_loop(self.loop)
        if self.report is not None and not self.int8:
            raise ValueError("--report is of the calibration, which only INT8 needs; add --int8 or leave it away")


def parse_loop(text: str) -> int | None:
    """Segments of the unrolled graph: None for `host`, 0 for `unrolled`, N for `unrolled=N`."""
    form, equals, count = text.partition("=")
    if text == "host":
        return None
    if form != "unrolled" or (equals and not (count.isdecimal() and int(count) > 0)):
        raise ValueError(f"--loop {text} is no form of the loop; give host, unrolled or unrolled=N with N from 1")
    return int(count or 0)
