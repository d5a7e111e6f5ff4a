"""A calibration in pictures, drawn from its report alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hrm_calibration.int8_report import Int8Report
from hrm_calibration.paired import Paired

WIDTH, ROW_HEIGHT = 9.0, 0.22


def save(report: Int8Report, directory: Path) -> list[Path]:
    """One PNG for each question a reader may have; gives the files in that order."""
    directory.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, tuple[float, Callable[[Axes, Int8Report], None]]] = {
        "methods": (3.5, draw_methods),
        "layers": (1.5 + ROW_HEIGHT * len(report.sensitivity), draw_layers),
        "ranges": (1.5 + ROW_HEIGHT * len(report.sites), draw_ranges),
        "reach": (3.5, draw_reach),
        "budget": (3.5, draw_budget),
    }
    return [_drawn(directory / f"{name}.png", height, draw, report) for name, (height, draw) in drawings.items()]


def draw_methods(axes: Axes, report: Int8Report) -> None:
    """What each method loses against float32, with the interval that holds the true loss at 95 %."""
    for index, score in enumerate(report.methods):
        _draw_loss(axes, index, score.exact, "C0" if score.method == report.chosen else "C7")
    axes.axhline(0, color="0.6", linestyle="--")
    axes.set_xticks(range(len(report.methods)), [score.method for score in report.methods])
    axes.set_ylabel("exact solves lost (points)")
    axes.set_title(
        f"{report.num_tried} puzzles, {100 * report.float32.exact:.1f} % of them solved in float32; "
        f"chosen: {report.chosen}"
    )


def draw_layers(axes: Axes, report: Int8Report) -> None:
    """How far each matrix moves the carry, the worst on top."""
    layers = list(reversed(report.sensitivity))
    colors = ["C1" if layer.weight in report.weight_only else "C0" for layer in layers]
    axes.barh([layer.weight for layer in layers], [layer.drift for layer in layers], color=colors)
    axes.set_xlabel("relative drift of the carry in one segment")
    axes.set_title(f"inputs of one matrix rounded at a time; {len(report.weight_only)} left weight-only")


def draw_ranges(axes: Axes, report: Int8Report) -> None:
    """The largest value of each call site and where each method clips."""
    sites = list(reversed(report.sites))
    rows = range(len(sites))
    axes.barh([site.name for site in sites], [site.largest for site in sites], color="0.85", label="largest seen")
    for index, score in enumerate(report.methods):
        clips = [127 * site.scales[score.method] for site in sites]
        size = 30 if score.method == report.chosen else 10
        axes.scatter(clips, rows, s=size, color=f"C{index}", label=score.method, zorder=2)
    axes.set_xlabel("magnitude")
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set_title("what each call site reads, and where it is clipped")


def draw_reach(axes: Axes, report: Int8Report) -> None:
    """How many calibration puzzles ran each segment: the weight its states have."""
    axes.bar(range(1, len(report.reach) + 1), report.reach, color="C0")
    axes.set_xlabel("segment")
    axes.set_ylabel("puzzles that ran it")
    axes.set_title(f"states of {report.num_calibration} calibration puzzles")


def draw_budget(axes: Axes, report: Int8Report) -> None:
    """The loss as the inputs of matrices go back to float, with the interval that holds the true one at 95 %."""
    for step in report.budget_steps:
        _draw_loss(axes, step.num_weight_only, step.exact, "C0")
    axes.axhline(100 * report.budget, color="C3", linestyle="--", label="budget")
    axes.set_xticks(range(len(report.budget_steps)))
    axes.set_xlabel("weight-only matrices")
    axes.set_ylabel("exact solves lost (points)")
    axes.legend()
    axes.set_title(f"{report.num_choice} puzzles")


def _draw_loss(axes: Axes, position: int, exact: Paired, color: str) -> None:
    axes.plot([position, position], [100 * exact.low, 100 * exact.high], color=color)
    axes.plot([position], [100 * exact.loss], color=color, marker="o")


def _drawn(path: Path, height: float, draw: Callable[[Axes, Int8Report], None], report: Int8Report) -> Path:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots(), report)
    figure.savefig(path, dpi=110)
    return path
