"""The figures of a run by their names in TensorBoard and W&B, and the forms of those in a terminal.

A row of metrics.ndjson holds the means since the row before it: its step, samples and passes over
the data, times of a step, and the groups `train` and `system`.
"""

from collections.abc import Mapping
from typing import Any

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


def phase_shares(row: Mapping[str, Any]) -> dict[str, float]:
    """Each phase's share of a step, and the rest; nothing if no step was measured."""
    step_ms = row["step_ms"]
    if not step_ms:
        return {}
    shares = {phase: ms / step_ms for phase, ms in row["phase_ms"].items()}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return shares


def named(row: Mapping[str, Any]) -> dict[str, float]:
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


def line(row: Mapping[str, Any], forms: Mapping[str, str]) -> str:
    """The figures of a row that have one of the forms (TRAINING or MACHINE)."""
    figures = named(row)
    shown: list[str] = []
    for name, form in forms.items():
        value = figures.get(name)
        if value is not None:
            shown.append(form.format(value))
    return ", ".join(shown)
