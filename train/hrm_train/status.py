"""The state of a run, from its files alone, also while another process writes it; a picture of its validations."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, cast, get_args

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hrm_host.progress import duration
from hrm_host.reading import json_from, text_of
from hrm_model import checkpoint
from hrm_train import checkpoints, evaluate

SETTINGS, METRICS, VALIDATIONS = "run.json", "metrics.ndjson", "validation.ndjson"
PICTURE = "curve.png"
TAIL_BYTES, WATCH_S = 1 << 16, 2.0
NUMBER = int | float
Row = dict[str, Any]


def read_lines(file: Path, last_bytes: int = 1 << 62) -> list[Row]:
    """The JSON objects in the last bytes of a file, which may be growing or missing; other lines are passed over."""
    if not file.exists():
        return []
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - last_bytes))
        lines = stream.read().decode(errors="replace").splitlines()
    found: list[Row] = []
    for line in lines:
        with suppress(ValueError):
            row = json_from(line)
            if isinstance(row, dict):
                found.append(cast("Row", row))
    return found


def _holds(row: Row, **kinds: type | UnionType) -> bool:
    return all(isinstance(row.get(name), kind) for name, kind in kinds.items())


def _is_validation(row: Row) -> bool:
    has_figures = _holds(
        row, step=int, samples=int, num_puzzles=int, proof_exists=bool, score=NUMBER, loss=NUMBER
    )
    has_curves = (
        _holds(row, exact=list, proven=list, cells=list)
        and row["exact"]
        and row["proven"]
        and row["cells"]
    )
    return bool(row.get("kind") in get_args(evaluate.Kind) and has_figures and has_curves)


def _is_moment(row: Row) -> bool:
    return _holds(row, time=NUMBER, step=int, samples=int, phase_ms=dict, train=dict, system=dict)


def append_line(file: Path, row: Mapping[str, Any]) -> None:
    """Add a line of JSON; a torn one before it, which a killed process left, keeps to itself."""
    with file.open("ab+") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 1))
        end = b"\n" if stream.read() not in (b"", b"\n") else b""
        stream.write(end + json.dumps(row).encode() + b"\n")


class History:
    def __init__(self, run: Path) -> None:
        self._file = run / VALIDATIONS

    def add(
        self,
        kind: evaluate.Kind,
        step: int,
        samples: int,
        evaluation: evaluate.Evaluation,
        **more: float,
    ) -> None:
        curves = {
            name: [round(value, 5) for value in getattr(evaluation, name)]
            for name in evaluate.CURVES
        }
        figures = {name: getattr(evaluation, name) for name in evaluate.FIGURES}
        more |= {f"pass_at_{k}": round(share, 5) for k, share in evaluation.pass_at.items()}
        where = {"time": time.time(), "kind": kind, "step": step, "samples": samples}
        append_line(self._file, {**where, **more, **figures, **curves})

    def rows(
        self, kind: evaluate.Kind | None = None, until_step: float = float("inf")
    ) -> list[Row]:
        """In the order of their steps, the latest of each step and kind."""
        found = {
            (row["step"], row["kind"]): row for row in read_lines(self._file) if _is_validation(row)
        }
        return [
            row
            for (step, of), row in sorted(found.items())
            if step <= until_step and (kind is None or of == kind)
        ]

    def best(
        self,
        kind: evaluate.Kind,
        until_step: float,
        worth: Callable[[Row], float] = lambda row: row["score"],
    ) -> Row | None:
        return max(self.rows(kind, until_step), key=worth, default=None)


def read_status(run: Path) -> Row:
    """What `hrm-train status --json` prints; None where the run has not come so far. Refuses what holds no run."""
    try:
        recipe = json_from(text_of(run / SETTINGS))["recipe"]
        puzzle, total_samples = str(recipe["puzzle"]), max(1, int(recipe["total_samples"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{run} holds no run ({error}); give the directory that hrm-train --run has made"
        ) from error
    rows = [row for row in read_lines(run / METRICS, TAIL_BYTES) if _is_moment(row)]
    history = History(run)
    row, validations, best = (
        rows[-1] if rows else {},
        history.rows(),
        history.best("whole", float("inf")),
    )
    speed, samples, step_ms = row.get("samples_per_s"), row.get("samples", 0), row.get("step_ms")
    shares = {phase: ms / step_ms for phase, ms in row["phase_ms"].items()} if step_ms else {}
    if step_ms:
        shares["other"] = max(0.0, 1 - sum(shares.values()))  # what no phase covers
    pointers = {name: run / name for name in ("latest", "best")}
    return {
        "run": str(run),
        "puzzle": puzzle,
        "process": checkpoints.writer_of(run),
        "step": row.get("step", 0),
        "samples": samples,
        "total_samples": total_samples,
        "samples_per_s": speed,
        **{name: row.get(name) for name in ("step_ms", "step_p50_ms", "step_p99_ms", "cpu_cores")},
        "eta_s": max(0, total_samples - samples) / speed if speed else None,
        "age_s": time.time() - row["time"] if row else None,
        "train": row.get("train", {}),
        "system": row.get("system", {}),
        "phase_share": shares,
        "last_validation": _short(validations[-1]) if validations else None,
        "best_validation": _short(best) if best else None,
        "checkpoints": [path.name for path in checkpoint.steps_of(run)],
        **{name: _named(file) for name, file in pointers.items()},
    }


def _named(pointer: Path) -> str | None:
    try:
        return checkpoint.resolve(pointer).name
    except checkpoint.CheckpointError:
        return None


def _short(row: Mapping[str, Any]) -> Row:
    """A validation without its curves: their last values."""
    return {name: value[-1] if isinstance(value, list) else value for name, value in row.items()}


def watch(run: Path, console: Console) -> None:
    """Shows a run until it is finished, or no process writes it any more."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            status = read_status(run)
            live.update(table_of(status), refresh=True)
            if not status["process"]:
                return
            time.sleep(WATCH_S)


def table_of(status: Mapping[str, Any]) -> Table:
    samples, total, process, train = (
        status[name] for name in ("samples", "total_samples", "process", "train")
    )
    writing = f"process {process} writes it" if process else "no process writes it"
    rows = {
        "state": "finished" if samples >= total and not process else writing,
        "step": f"{status['step']:,}",
        "samples": f"{samples:,} of {total:,} ({100 * samples / total:.1f} %)",
    }
    if status["samples_per_s"]:
        rows["speed"] = f"{status['samples_per_s']:.0f} samples/s, {duration(status['age_s'])} ago"
        if status["step_p99_ms"]:
            rows["speed"] += (
                f"; a step {status['step_p50_ms']:.1f} ms, one in a hundred {status['step_p99_ms']:.1f} ms"
            )
        rows["remaining"] = duration(status["eta_s"]) + (
            " from then" if process else " once it goes on"
        )
    rows |= {name: text.format(train[name]) for name, text in _SHOWN.items() if name in train}
    if status["phase_share"]:
        rows["a step"] = ", ".join(
            f"{phase} {100 * share:.0f} %" for phase, share in status["phase_share"].items()
        )
    system = {"cpu_cores": status["cpu_cores"], **status["system"]}
    if any(system.values()):
        rows["machine"] = ", ".join(
            f"{name} {value:.4g}" for name, value in system.items() if value is not None
        )
    rows["last validation"] = _validation(status["last_validation"])
    rows["best validation"] = _validation(status["best_validation"])
    pointers = ("latest", "best")
    names = [
        name + "".join(f" ({p})" for p in pointers if status[p] == name)
        for name in status["checkpoints"]
    ]
    rows["checkpoints"] = ", ".join(names) or "none yet"
    table = Table(title=f"{status['run']} ({status['puzzle']})", show_header=False)
    for name, text in rows.items():
        table.add_row(name, text)
    return table


_SHOWN = {
    "loss": "{:.4f}",
    "answer_loss": "{:.4f}",
    "exact": "{:.1%}",
    "cells": "{:.2%}",
    "segments": "{:.2f}",
    "lr": "{:.3g}",
    "gradient_norm": "{:.3g}",
}  # of training, by the names that TensorBoard and W&B have too


def _validation(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "none yet"
    proven = f", {100 * row['proven']:.1f} % proven" if row["proof_exists"] else ""
    return f"{100 * row['exact']:.1f} % exact{proven} of {row['num_puzzles']} puzzles at step {row['step']:,}"


def draw(run: Path) -> None:
    from matplotlib.backends.backend_agg import (
        FigureCanvasAgg,
    )  # slow to import, and every resume would wait for it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="samples (one puzzle for one segment)", ylabel="share of held-out puzzles"
    )
    rows = list(
        {row["step"]: row for row in History(run).rows()}.values()
    )  # the whole set's where it was looked at
    drawn = {
        "exact after the last segment": ("exact", -1),
        "exact after 4 segments": ("exact", min(4, len(rows[0]["exact"])) - 1),
        "right among open cells": ("cells", -1),
        **({"proven at any segment": ("proven", -1)} if rows[0]["proof_exists"] else {}),
    }
    for label, (name, index) in drawn.items():
        axes.plot([row["samples"] for row in rows], [row[name][index] for row in rows], label=label)
    whole = [row for row in rows if row["kind"] == "whole"]
    axes.plot(
        [row["samples"] for row in whole],
        [row["score"] for row in whole],
        "k.",
        label="score on the whole set",
    )
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(run / PICTURE, dpi=120)
