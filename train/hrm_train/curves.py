"""Draws a run's validations as a picture: share of held-out puzzles proven and solved exactly, over samples.

python -m hrm_train.curves curve.png runs/first runs/second      # runs that continue one another, end to end
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

VALIDATIONS = "validation.ndjson"


def draw(picture: Path, runs: list[Path]) -> None:
    """Writes the picture; `runs` are laid end to end, as --init continues one run with another."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="samples (one puzzle for one segment)", ylabel="share of held-out puzzles", ylim=(0, 1)
    )
    samples, rows = _joined(runs)
    for label, values in _lines(rows).items():
        axes.plot(samples, values, label=label)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=120)


def _joined(runs: list[Path]) -> tuple[list[int], list[dict[str, Any]]]:
    samples: list[int] = []
    rows: list[dict[str, Any]] = []
    for run in runs:
        start = samples[-1] if samples else 0
        lines = [json.loads(line) for line in (run / VALIDATIONS).read_text().splitlines()]
        latest = {line["step"]: line for line in lines}  # a killed run validates some steps twice
        rows += latest.values()
        samples += [start + row["samples"] for row in latest.values()]
    return samples, rows


def _lines(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        "proven at any segment": [row["proven"][-1] for row in rows],
        "exact after the last segment": [row["exact"][-1] for row in rows],
        "exact after 4 segments": [row["exact"][min(3, len(row["exact"]) - 1)] for row in rows],
        "right among open cells": [row["cells"][-1] for row in rows],
    }


if __name__ == "__main__":
    draw(Path(sys.argv[1]), [Path(run) for run in sys.argv[2:]])
