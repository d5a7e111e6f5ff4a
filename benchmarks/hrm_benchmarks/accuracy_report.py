"""Solves against attempts and compute: a table, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hrm_benchmarks.accuracy import Figures, Level, figures
from hrm_benchmarks.report import environment

LEGEND = """\
solved:  proven answers; wrong: those that differ from the known solution, of those compared
segments, CPU s:  all attempts together, for each puzzle and for each solve
x first: beside the first row of this run: solves, segments, CPU seconds"""
COLUMNS = ("attempts", "solved", "wrong", "segments", "a solve", "CPU s", "a solve", "x first")


def print_figures(title: str, found: Sequence[Figures], console: Console) -> None:
    table = Table(title=title, caption=LEGEND, caption_justify="left", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(
            str(one.attempts),
            f"{one.solved} of {one.puzzles}",
            f"{one.wrong} of {one.compared}",
            f"{one.segments_per_puzzle:.1f}",
            _figure(one.segments_per_solve, 0),
            f"{one.cpu_s_per_puzzle:.2f}",
            _figure(one.cpu_s_per_solve, 2),
            f"{_figure(one.solved_ratio, 2)} / {one.segments_ratio:.2f} / {one.cpu_ratio:.2f}",
        )
    console.print(table)


def one_line(level: Level) -> str:
    """What is told as soon as a level has ended."""
    return (
        f"{level.attempts} attempts: {level.num_solved} of {len(level.segments)} solved, {level.num_wrong} wrong, "
        f"{level.total_segments / len(level.segments):.1f} segments and "
        f"{level.cpu_s / len(level.segments):.2f} CPU s a puzzle"
    )


def as_json(settings: Mapping[str, object], levels: Sequence[Level]) -> str:
    """The figures, and what became of every puzzle at every level."""
    runs = [
        {**asdict(one), "is_solved": level.is_solved, "segments": level.segments}
        for one, level in zip(figures(levels), levels, strict=True)
    ]
    return json.dumps({"environment": environment(), "settings": settings, "levels": runs}, indent=2, default=str)


def save_picture(path: Path, title: str, found: Sequence[Figures]) -> None:
    """Share solved over attempts, and over the compute spent on a puzzle."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ValueError("--png needs matplotlib: run pip install matplotlib.") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    shares = [100 * one.solved / one.puzzles for one in found]
    over = {
        "attempts": [one.attempts for one in found],
        "segments spent on a puzzle": [one.segments_per_puzzle for one in found],
    }
    for axis, (name, values) in zip(axes, over.items(), strict=True):
        axis.plot(values, shares, marker="o", color="#2a66a3")
        axis.set_xscale("log")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        axis.margins(x=0.12)
        for value, share, one in zip(values, shares, found, strict=True):
            axis.annotate(f"{one.attempts}×", (value, share), textcoords="offset points", xytext=(5, -11))
    axes[0].set_xticks(over["attempts"], [str(value) for value in over["attempts"]])
    axes[0].set_ylabel("solved, all proven (%)")
    axes[0].set_ylim(0, 105)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
