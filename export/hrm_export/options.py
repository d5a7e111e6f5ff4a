"""The options of hrm-export; contradictions are rejected here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from hrm_calibration import INT8_BUDGET

SOURCE_HELP = (
    "Checkpoint, run, or a run's file best or latest. A run means its best checkpoint, or its "
    "latest if there is no best. Default: the run runs/CALIB."
)
OUT_HELP = "Bundle directory to create. Default: RUN.bundle."
NAME_HELP = "Name of the model. Default: the name of the directory."
BOARD_HELP = "Export relational weights for a board of this size, such as 30x30."
CALIB_HELP = (
    "Source of calibration puzzles: sudoku, maze, arc or logistics to generate them, "
    "a data set, or a CSV file."
)
BUDGET_HELP = "Points of exact solves that INT8 may lose."
LOOP_HELP = "host, or unrolled[=N] to add a graph that runs N segments in one call."
ENGINE_HELP = "Build TensorRT engines for this GPU."
POLICY_HELP = "verified, learned or fixed. Default: verified if answers can be proven."
THRESHOLD_HELP = "Halt above this margin. Default: chosen on the held-out puzzles."
SEGMENTS_HELP = "Maximum number of segments per puzzle. Default: as in training."
PUZZLE_IDS_HELP = (
    "Keep this many rows of the puzzle table, without names unless --data names as many. "
    "Default: all rows, with the names of the data set."
)
DATA_HELP = "Data set with the held-out puzzles (test split). Default: generated puzzles."
HELD_OUT_HELP = "Measure every precision on at most this many puzzles."
MAX_LOSS_HELP = (
    "Points of exact solves that a precision may lose against fp32. If the measured interval "
    "contains this number, the precision is marked undecided and auto does not choose it."
)
MINUTES_HELP = (
    "Time limit of the export in minutes. The bundle holds what is finished then; the export says "
    "what is missing."
)
DEVICE_HELP = "Device that runs the puzzles and the golden traces."
GOLDEN_HELP = "Compare with PyTorch on at most this many golden puzzles."
JSON_HELP = "Print one JSON object instead of the table."


@dataclass(frozen=True, kw_only=True)
class Options:
    source: Annotated[
        Path | None,
        typer.Argument(metavar="CHECKPOINT", help=SOURCE_HELP),
    ] = None
    out: Annotated[Path | None, typer.Option(help=OUT_HELP)] = None
    name: Annotated[str | None, typer.Option(help=NAME_HELP)] = None
    board: Annotated[str | None, typer.Option(help=BOARD_HELP)] = None
    fp16: Annotated[bool, typer.Option("--fp16", help="Add a float16 graph.")] = False
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Calibrate and add an INT8 graph, with a second form for CPUs."
        ),
    ] = False
    calib: Annotated[str | None, typer.Option(help=CALIB_HELP)] = None
    int8_budget: Annotated[float, typer.Option(min=0, help=BUDGET_HELP)] = 100 * INT8_BUDGET
    loop: Annotated[str, typer.Option(help=LOOP_HELP)] = "host"
    build_engine: Annotated[bool, typer.Option("--build-engine", help=ENGINE_HELP)] = False
    policy: Annotated[str | None, typer.Option(help=POLICY_HELP)] = None
    threshold: Annotated[float | None, typer.Option(help=THRESHOLD_HELP)] = None
    max_segments: Annotated[int | None, typer.Option(min=1, help=SEGMENTS_HELP)] = None
    puzzle_ids: Annotated[int | None, typer.Option(min=1, help=PUZZLE_IDS_HELP)] = None
    data: Annotated[Path | None, typer.Option(help=DATA_HELP)] = None
    held_out: Annotated[int, typer.Option(min=1, help=HELD_OUT_HELP)] = 2000
    max_loss: Annotated[float, typer.Option(help=MAX_LOSS_HELP)] = 1.0
    budget_minutes: Annotated[float, typer.Option(min=0.1, help=MINUTES_HELP)] = 20.0
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help=DEVICE_HELP)] = "auto"
    golden: Annotated[int, typer.Option(min=1, help=GOLDEN_HELP)] = 16
    as_json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False

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
    if form != "unrolled" or not count.isdecimal() or int(count) == 0:
        problem = f"--loop {text} is not a form of the loop"
        raise ValueError(f"{problem}; give host, unrolled or unrolled=N with N of 1 or more")
    return int(count)
