"""The options of hrm-export; contradictions are rejected here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from hrm_edge_runtime.contract.halting import PolicyKind
from hrm_host.command import AsJson

MOST_SEGMENTS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Options:
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Checkpoint, run, or a run's file best or latest. A run means its best "
            "checkpoint, or its latest if there is no best. Default: the run runs/CALIB.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Bundle directory to create. Default: RUN.bundle.")
    ] = None
    name: Annotated[
        str | None, typer.Option(help="Name of the model. Default: the name of the directory.")
    ] = None
    board: Annotated[
        str | None,
        typer.Option(help="Export relational weights for a board of this size, such as 30x30."),
    ] = None
    fp16: Annotated[bool, typer.Option("--fp16", help="Add a float16 graph.")] = False
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Calibrate and add an INT8 graph, with a second form for CPUs."
        ),
    ] = False
    calib: Annotated[
        str | None,
        typer.Option(
            help="Source of calibration puzzles: sudoku, maze, arc or logistics to generate them, "
            "a data set, or a CSV file."
        ),
    ] = None
    loop: Annotated[
        str,
        typer.Option(help="host, or unrolled[=N] to add a graph that runs N segments in one call."),
    ] = "host"
    build_engine: Annotated[
        bool, typer.Option("--build-engine", help="Build TensorRT engines for this GPU.")
    ] = False
    policy: Annotated[
        PolicyKind | None,
        typer.Option(help="When a puzzle halts. Default: verified if answers can be proven."),
    ] = None
    max_segments: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_SEGMENTS,
            help="Maximum number of segments per puzzle. Default: as in training.",
        ),
    ] = None
    puzzle_ids: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep this many rows of the puzzle table, without names unless --data names "
            "as many. Default: all rows, with the names of the data set.",
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data set with the held-out puzzles (test split). Default: generated puzzles."
        ),
    ] = None
    held_out: Annotated[
        int, typer.Option(min=1, help="Measure every precision on at most this many puzzles.")
    ] = 2000
    max_loss: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Points of exact solves that a precision may lose against fp32; INT8 aims at "
            "half. If the measured interval contains this number, the precision is marked "
            "undecided and auto does not choose it.",
        ),
    ] = 1.0
    budget_minutes: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Time limit of the export in minutes. The bundle holds what is finished "
            "then; the export says what is missing.",
        ),
    ] = 20.0
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option(help="Device that runs the puzzles and the golden traces."),
    ] = "auto"
    golden: Annotated[
        int, typer.Option(min=1, help="Compare with PyTorch on at most this many golden puzzles.")
    ] = 16
    as_json: AsJson = False

    def __post_init__(self) -> None:
        parse_loop(self.loop)

    @property
    def lower_precisions(self) -> list[str]:
        """The requested precisions below float32."""
        names: list[str] = []
        if self.fp16:
            names.append("fp16")
        if self.int8:
            names.append("int8")
        return names


def parse_loop(text: str) -> int | None:
    """Segments of the unrolled graph: None for `host`, 0 for `unrolled`, N for `unrolled=N`."""
    if text == "host":
        return None
    if text == "unrolled":
        return 0
    form, _, count = text.partition("=")
    if form != "unrolled" or not count.isdecimal() or not 1 <= int(count) <= MOST_SEGMENTS:
        problem = f"--loop {text} is not a form of the loop"
        remedy = f"give host, unrolled or unrolled=N with N from 1 to {MOST_SEGMENTS}"
        raise ValueError(f"{problem}; {remedy}")
    return int(count)
