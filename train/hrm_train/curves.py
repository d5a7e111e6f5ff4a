"""Pictures of a run's validations: over samples, and over the number of segments.

python -m hrm_train.curves curve.png runs/first runs/second      # runs that continue one another, end to end
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hrm_train.validation import History

PROGRESS, SEGMENTS = "curve.png", "segments.png"


def draw_run(run: Path) -> None:
    """Writes both pictures into the run."""
    draw(run / PROGRESS, [run])
    draw_segments(run / SEGMENTS, run)


def draw(picture: Path, runs: Sequence[Path]) -> None:
    """Shares of held-out puzzles over samples; `runs` are laid end to end, as --init continues one with another."""
    figure, axes = _paper("samples (one puzzle for one segment)")
    samples, rows = _joined(runs)
    for label, values in _lines(rows).items():
        axes.plot(samples, values, label=label)
    whole = [index for index, row in enumerate(rows) if row["kind"] == "whole"]
    axes.plot([samples[i] for i in whole], [rows[i]["score"] for i in whole], "k.", label="score on the whole set")
    axes.legend()
    figure.savefig(picture, dpi=120)


def draw_segments(picture: Path, run: Path) -> None:
    """What each further segment adds, at the last validation of the whole set; nothing where there is none yet."""
    whole = [row for row in History(run).rows() if row["kind"] == "whole"]
    if not whole:
        return
    row, (figure, axes) = whole[-1], _paper("segments")
    counts = range(1, len(row["exact"]) + 1)
    for name, label in _KINDS.items():
        if name != "proven" or row["proof_exists"]:
            axes.plot(counts, row[name], label=label)
    axes.plot([row["segments"]], [row["halted_exact"]], "k*", label="exact where the model halts by itself")
    axes.set_title(f"step {row['step']}, {row['num_puzzles']} puzzles")
    axes.legend()
    figure.savefig(picture, dpi=120)


_KINDS = {"exact": "exact", "proven": "proven so far", "cells": "right among open cells", "halting": "halting right"}


def _paper(xlabel: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and every resume would wait for it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel=xlabel, ylabel="share of held-out puzzles", ylim=(0, 1))
    axes.grid(alpha=0.3)
    return figure, axes


def _joined(runs: Sequence[Path]) -> tuple[list[int], list[dict[str, Any]]]:
    """One row for each step: the whole set's where it was looked at."""
    samples: list[int] = []
    rows: list[dict[str, Any]] = []
    for run in runs:
        start = samples[-1] if samples else 0
        latest = {row["step"]: row for row in History(run).rows()}
        rows += latest.values()
        samples += [start + row["samples"] for row in latest.values()]
    return samples, rows


def _lines(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    lines = {
        "exact after the last segment": [row["exact"][-1] for row in rows],
        "exact after 4 segments": [row["exact"][min(3, len(row["exact"]) - 1)] for row in rows],
        "right among open cells": [row["cells"][-1] for row in rows],
    }
    if any(row["proof_exists"] for row in rows):
        lines["proven at any segment"] = [row["proven"][-1] for row in rows]
    return lines


if __name__ == "__main__":
    draw(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
