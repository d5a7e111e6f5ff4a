"""Figures of the policies side by side, as a table and as JSON.

Shapes: N puzzles, T tokens.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.policies import Run

PAPER_WIDTH = 160  # characters
LEGEND = """\
refill x:   how many times as many puzzles per second refilling gives, in the same round
occupancy:  slot-segments that held a live puzzle, of those offered while puzzles waited; whole: in the whole run
of bound:   occupancy times the engine's share of the time; 1 is all that refilling can give
host ms:    time outside the engine for each step
exact:      puzzles with every cell right, under that policy's own halting; proven: those the check proves"""

RATES = ("puzzles/s", "refill x", "occupancy", "whole", "of bound")
PER_STEP = ("host ms", "step ms")
ANSWERS = ("segments", "exact", "proven")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One policy's figures; over several rounds each is the median."""

    puzzles_per_s: float
    refill_ratio: float
    occupancy: float
    occupancy_whole_run: float
    share_of_bound: float
    host_ms_per_step: float
    step_ms: float
    mean_segments: float
    exact: float
    verified: float
    steps: float


def figures(run: Run, refill: Run, labels_NT: NDArray[np.int32]) -> Figures:
    """The figures of one run beside the refill run of the same round."""
    occupancy = run.backlog_rows_used / max(1, run.backlog_rows_offered)
    return Figures(
        puzzles_per_s=len(run.results) / run.wall_s,
        refill_ratio=(len(refill.results) / refill.wall_s) / (len(run.results) / run.wall_s),
        occupancy=occupancy,
        occupancy_whole_run=run.rows_used / run.rows_offered,
        share_of_bound=occupancy * run.step_s / run.wall_s,
        host_ms_per_step=1e3 * run.host_s / run.steps,
        step_ms=1e3 * run.step_s / run.steps,
        mean_segments=float(np.mean([result.segments for result in run.results])),
        exact=exact_share(run, labels_NT),
        verified=float(np.mean([result.verified is True for result in run.results])),
        steps=run.steps,
    )


def exact_share(run: Run, labels_NT: NDArray[np.int32]) -> float:
    """Share of puzzles answered with exactly their label."""
    right = [
        result.answer_T is not None and np.array_equal(result.answer_T, labels_NT[result.attempt_id])
        for result in run.results
    ]
    return float(np.mean(right))


def histogram(run: Run) -> list[int]:
    """How many puzzles halted after n segments, n from 0."""
    return np.bincount([result.segments for result in run.results]).tolist()


def over_rounds(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    columns = [asdict(one) for one in rounds]
    return Figures(**{name: median(column[name] for column in columns) for name in columns[0]})


def environment() -> dict[str, object]:
    """The machine and the libraries, and how busy others keep it."""
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": np.__version__,
    }


def as_json(
    settings: Mapping[str, object], by_policy: Mapping[str, Figures], histograms: Mapping[str, list[int]]
) -> str:
    """Everything a script would read; also what `--segments` takes as a recorded distribution."""
    runs = {name: {**asdict(one), "segments_histogram": histograms[name]} for name, one in by_policy.items()}
    return json.dumps({"environment": environment(), "settings": settings, "runs": runs}, indent=2, default=str)


def paper() -> Console:
    """Standard output; in a pipe it is wide enough that no figure is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PAPER_WIDTH)


def print_table(title: str, by_policy: Mapping[str, Figures], console: Console) -> None:
    table = Table(title=title, caption=LEGEND, caption_justify="left", title_justify="left")
    table.add_column("policy")
    for column in (*RATES, *PER_STEP, *ANSWERS):
        table.add_column(column, justify="right")
    for name, one in by_policy.items():
        table.add_row(name, *_cells(one, is_refill=name == "refill"))
    console.print(table)


def _cells(one: Figures, *, is_refill: bool) -> list[str]:
    return [
        f"{one.puzzles_per_s:.2f}",
        "" if is_refill else f"{one.refill_ratio:.2f}",
        f"{one.occupancy:.3f}",
        f"{one.occupancy_whole_run:.3f}",
        f"{one.share_of_bound:.3f}" if is_refill else "",
        f"{one.host_ms_per_step:.3f}",
        f"{one.step_ms:.2f}",
        f"{one.mean_segments:.2f}",
        f"{one.exact:.3f}",
        f"{one.verified:.3f}",
    ]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
