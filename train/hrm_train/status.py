"""Reads the state of a run from its files alone; another process may be writing them.

A row of metrics.ndjson holds the means since the row before it: its step, samples and passes over
the data, times of a step, and the groups `train` and `system`.
"""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from rich.table import Table

from hrm_host.progress import duration
from hrm_host.reading import counted, json_from
from hrm_model import checkpoint
from hrm_train import checkpoints, evaluate
from hrm_train.batches import Progress
from hrm_train.run_plan import Row, change_text, read_plan

METRICS = "metrics.ndjson"
VALIDATIONS = "validation.ndjson"

MEASURED = ("samples_per_s", "step_ms", "step_p50_ms", "step_p99_ms", "cpu_cores")
"""Figures of the machine that every row has."""

# What a terminal shows of training, and of the machine.
TRAINING = {
    "system/samples_per_s": "{:.4g} samples/s",
    "train/loss": "loss {:.3f}",
    "train/answer_loss": "answers {:.3f}",
    "train/exact": "exact {:.1%}",
    "train/cells": "cells {:.2%}",
    "train/segments": "{:.2f} segments",
    "train/passes": "{:.3g} passes",
    "train/lr": "lr {:.3g}",
    "system/data_wait_share": "data wait {:.0%}",
    "system/gpu_utilisation_percent": "GPU {:.0f} %",
}
MACHINE = {
    "system/step_p50_ms": "a step {:.1f} ms",
    "system/step_p99_ms": "one in a hundred {:.1f} ms",
    "system/cpu_cores": "{:.3g} cores",
    "system/gpu_temperature_c": "{:.0f} °C",
    "system/gpu_power_w": "{:.0f} W",
    "system/memory_peak_gib": "memory {:.2f} GiB",
}
# Fields of a line without which it is passed over.
METRICS_FIELDS = {"time", "step", "samples", "phase_ms", "train", "system"}
VALIDATION_FIELDS = {
    "kind",
    "step",
    "samples",
    "num_puzzles",
    "proof_exists",
    "score",
    "loss",
    "exact",
    "proven",
    "cells",
}
# The figures of a run without a step.
NOTHING_YET: Row = {
    **dict.fromkeys(("time", *MEASURED)),
    **dict.fromkeys(("step", "samples", "passes"), 0),
    **{name: {} for name in ("phase_ms", "train", "system")},
}


def read_lines(file: Path, last_bytes: int = 1 << 62) -> list[Row]:
    """The JSON objects in the last bytes of a file; skips other lines.

    The file may be growing or missing.
    """
    if not file.is_file():
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


def append_line(file: Path, row: Mapping[str, Any]) -> None:
    """Adds a line of JSON. A torn line, which a killed process left, is ended first."""
    with file.open("ab+") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 1))
        if stream.read() not in (b"", b"\n"):
            stream.write(b"\n")
        stream.write(json.dumps(row).encode() + b"\n")


def worth(row: Row) -> tuple[float, float]:
    """What makes a validation better: more proven or exact puzzles, then a lower loss."""
    return row["score"], -row["loss"]


def add_validation(
    run: Path,
    kind: evaluate.Kind,
    progress: Progress,
    passes: float,
    evaluation: evaluate.Evaluation,
) -> Row:
    """Appends and returns the line of a validation."""
    row: Row = {"time": time.time(), "kind": kind, **vars(progress), "passes": passes}
    for k, share in evaluation.pass_at.items():
        row[f"pass_at_{k}"] = round(share, 5)
    for name in evaluate.FIGURES:
        row[name] = getattr(evaluation, name)
    for name in evaluate.CURVES:
        row[name] = [round(value, 5) for value in getattr(evaluation, name)]
    append_line(run / VALIDATIONS, row)
    return row


def validations(
    run: Path, kind: evaluate.Kind | None = None, until_step: float = math.inf
) -> list[Row]:
    """Validations in the order of their steps; the latest of each step and kind."""
    latest: dict[tuple[int, str], Row] = {}
    for row in read_lines(run / VALIDATIONS):
        if VALIDATION_FIELDS - row.keys():
            continue
        has_curves = row["exact"] and row["proven"] and row["cells"]
        if has_curves and row["step"] <= until_step and kind in (None, row["kind"]):
            latest[row["step"], row["kind"]] = row
    return [latest[key] for key in sorted(latest)]


def best_validation(run: Path, kind: evaluate.Kind, until_step: float = math.inf) -> Row | None:
    return max(validations(run, kind, until_step), key=worth, default=None)


def phase_shares(row: Mapping[str, Any]) -> dict[str, float]:
    """Each phase's share of a step, and the rest; nothing if no step was measured."""
    step_ms = row["step_ms"]
    if not step_ms:
        return {}
    shares = {phase: ms / step_ms for phase, ms in row["phase_ms"].items()}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return shares


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """All figures of a row."""
    figures: dict[str, float] = {}
    for group in ("train", "system"):
        for name, value in row[group].items():
            figures[f"{group}/{name}"] = value
    figures["train/passes"] = row["passes"]
    for phase, value in row["phase_ms"].items():
        figures[f"system/{phase}_ms"] = value
    for name in MEASURED:
        figures[f"system/{name}"] = row[name]
    figures["system/data_wait_share"] = phase_shares(row).get("data", 0.0)
    return figures


def figures_line(row: Mapping[str, Any], forms: Mapping[str, str]) -> str:
    """The figures of a row that have one of the forms (TRAINING or MACHINE)."""
    figures = figures_of(row)
    shown: list[str] = []
    for name, form in forms.items():
        value = figures.get(name)
        if value is not None:
            shown.append(form.format(value))
    return ", ".join(shown)


def read_status(run: Path) -> Row:
    """What `hrm-train status --json` prints; None for what the run has not reached.

    Raises ValueError if the directory lacks a run.
    """
    plan = read_plan(run)
    total_samples = plan.recipe.total_samples
    row = NOTHING_YET
    for line in read_lines(run / METRICS, last_bytes=1 << 16):
        if not METRICS_FIELDS - line.keys():
            row = {**NOTHING_YET, **line}
    rows = validations(run)
    num_left = max(0, total_samples - row["samples"])
    speed = row["samples_per_s"]
    return {
        "run": str(run),
        "puzzle": plan.recipe.puzzle,
        "process": checkpoints.writer_of(run),
        **row,
        "total_samples": total_samples,
        "eta_s": num_left / speed if speed else None,
        "age_s": time.time() - row["time"] if row["time"] else None,
        "phase_share": phase_shares(row),
        "last_validation": _short(rows[-1] if rows else None),
        "best_validation": _short(best_validation(run, "whole")),
        "events": plan.events,
        "checkpoints": [path.name for path in checkpoint.steps_of(run)],
        "latest": _named(run / "latest"),
        "best": _named(run / "best"),
    }


def _named(pointer: Path) -> str | None:
    try:
        return checkpoint.resolve(pointer).name
    except checkpoint.CheckpointError:
        return None


def _short(row: Row | None) -> Row | None:
    """A validation with the last value of each curve."""
    if row is None:
        return None
    short: Row = {}
    for name, value in row.items():
        short[name] = value
        if isinstance(value, list):
            short[name] = cast("list[Any]", value)[-1]
    return short


def table_of(status: Mapping[str, Any]) -> Table:
    """The status as a table on a terminal."""
    rows = _progress_rows(status)
    shares = [f"{phase} {share:.0%}" for phase, share in status["phase_share"].items()]
    if shares:
        rows["training"] = figures_line(status, TRAINING)
        rows["machine"] = figures_line(status, MACHINE)
        rows["a step"] = ", ".join(shares)
    rows["last validation"] = _validation(status["last_validation"])
    rows["best validation"] = _validation(status["best_validation"])
    rows["checkpoints"] = ", ".join(status["checkpoints"]) or "none yet"
    for pointer in ("latest", "best"):
        rows[pointer] = status[pointer] or "none yet"
    for event in status["events"]:
        name, _, changes = change_text(event).partition(": ")
        rows[name] = changes
    table = Table(title=f"{status['run']} ({status['puzzle']})", show_header=False)
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _progress_rows(status: Mapping[str, Any]) -> dict[str, str]:
    samples = status["samples"]
    total = status["total_samples"]
    process = status["process"]
    state = "no process writes it"
    when = "once it continues"
    if process:
        state = f"process {process} writes it"
        when = f"from {duration(status['age_s'] or 0)} ago"
    elif samples >= total:
        state = "finished"
    share = f"{100 * samples / total:.1f} %"
    rows = {
        "state": state,
        "step": f"{status['step']:,}",
        "samples": f"{samples:,} of {total:,} ({share})",
    }
    if status["eta_s"]:
        rows["remaining"] = f"{duration(status['eta_s'])} {when}"
    return rows


def _validation(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "none yet"
    proven = ""
    if row["proof_exists"]:
        proven = f", {100 * row['proven']:.1f} % proven"
    puzzles = f"{counted(row['num_puzzles'], 'puzzle')} at step {row['step']:,}"
    return f"{100 * row['exact']:.1f} % exact{proven}, loss {row['loss']:.4g}, of {puzzles}"
