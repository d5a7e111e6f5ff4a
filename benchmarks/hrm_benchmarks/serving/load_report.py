"""A load run as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.report import environment
from hrm_benchmarks.serving.load import Found, Level

LEGEND = """\
Latency counts from the intended moment of sending. simulated: the same lane in simulated time, with the same
arrivals, the recorded segments and the measured cost of a step; off: measured against simulated.
lag: how late this client sent, p99."""


def print_found(title: str, found: Found, console: Console) -> None:
    capacity = found.capacity
    console.print(
        f"{title}\nready in {found.ready_s:.2f} s; a step of 1, 2, ... rows takes "
        f"{', '.join(f'{ms:.2f}' for ms in found.step_ms_B)} ms; HTTP adds {found.overhead_ms:.2f} ms\n"
        f"capacity {capacity.puzzles_per_s:.2f} puzzles/s of {capacity.mean_segments:.2f} segments; bound "
        f"{capacity.bound_per_s:.2f}; share of bound {capacity.share_of_bound:.3f} (occupancy "
        f"{capacity.stretch.occupancy:.3f} x engine {capacity.stretch.engine_share:.3f})",
        highlight=False,
    )
    table = Table(caption=f"{LEGEND}\ngoodput: answered within {found.slo_ms:.0f} ms", caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for level in found.levels:
        table.add_row(*_cells(level))
    console.print(table)


_COLUMNS = (
    "load", "offered/s", "goodput/s", "dropped", "p50 ms", "mean ms", "simulated", "off", "p99 ms", "simulated", "off",
    "lag ms",
)  # fmt: skip


def _cells(level: Level) -> list[str]:
    return [
        f"{level.share:.0%}",
        f"{level.offered_per_s:.2f}",
        f"{level.goodput_per_s:.2f}",
        f"{level.drop_rate:.2%}",
        f"{level.p50_ms:.1f}",
        f"{level.mean_ms:.1f}",
        f"{level.simulated_mean_ms:.1f}",
        f"{level.mean_off:+.1%}",
        f"{level.p99_ms:.1f}",
        f"{level.simulated_p99_ms:.1f}",
        f"{level.p99_off:+.1%}",
        f"{level.send_lag_p99_ms:.1f}",
    ]


def as_json(settings: Mapping[str, Any], found: Found) -> str:
    capacity = found.capacity
    said = {
        "environment": environment(),
        "settings": settings,
        "ready_s": found.ready_s,
        "step_ms": found.step_ms_B,
        "overhead_ms": found.overhead_ms,
        "slo_ms": found.slo_ms,
        "capacity": {
            "puzzles_per_s": capacity.puzzles_per_s,
            "bound_per_s": capacity.bound_per_s,
            "share_of_bound": capacity.share_of_bound,
            "occupancy": capacity.stretch.occupancy,
            "engine_share": capacity.stretch.engine_share,
            "mean_segments": capacity.mean_segments,
            "segments_histogram": np.bincount(capacity.segments_Q).tolist(),
        },
        "levels": [{**asdict(level), "mean_off": level.mean_off, "p99_off": level.p99_off} for level in found.levels],
    }
    return json.dumps(said, indent=2, default=str)


def save_picture(path: Path, title: str, found: Found) -> None:
    """The share of requests that took longer than a given time, measured and simulated, for each load."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2))
    for level, measured_s, simulated_s in zip(found.levels, found.measured_s, found.simulated_s, strict=True):
        lines = [_longer(measured_s), _longer(simulated_s)]
        (drawn,) = axes.plot(*lines[0], label=f"{level.share:.0%} of capacity")
        axes.plot(*lines[1], color=drawn.get_color(), linestyle=":")
    axes.set(
        xscale="log", yscale="log", xlabel="latency from the intended send time, ms", ylabel="share that took longer"
    )
    axes.set_title(f"{title}\n(dotted: simulated)", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _longer(latency_s: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ordered_ms = 1e3 * np.sort(latency_s)
    return ordered_ms, 1 - np.arange(len(ordered_ms)) / len(ordered_ms)
