"""A run told from its files alone, whole ones and torn ones, while it is written and after."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from train_tools import PUZZLE, SIZES

from hrm_train.hardware import PRESETS
from hrm_train.recipe import Recipe
from hrm_train.run_plan import RunPlan, write_plan
from hrm_train.status import (
    VALIDATIONS,
    append_line,
    read_lines,
    read_status,
    table_of,
)

TRAINED = {
    "loss": 1.5,
    "answer_loss": 1.25,
    "exact": 0.25,
    "cells": 0.875,
    "segments": 3.5,
    "lr": 2.5e-4,
}
MOMENT = {
    "time": 1000.0,
    "step": 40,
    "samples": 320,
    "samples_per_s": 16.0,
    "step_ms": 100.0,
    "step_p50_ms": 90.0,
    "step_p99_ms": 180.0,
    "cpu_cores": 1.5,
    "phase_ms": {"data": 10.0, "forward": 50.0},
    "train": TRAINED,
    "system": {"gpu_power_w": 120.0},
}


def validation(step: int, kind: str, score: float) -> dict[str, Any]:
    shares = [0.0, score]
    figures = {"exact": shares, "proven": shares, "cells": [score], "loss": 2.0}
    row = {"time": 1.0, "step": step, "samples": 8 * step, "kind": kind, "score": score}
    return {**row, **figures, "proof_exists": True, "num_puzzles": 40}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for name in ("step_20", "step_40", "step_9"):
        (run / name).mkdir(parents=True)
    recipe = Recipe(puzzle=PUZZLE.name, total_samples=480)
    write_plan(
        RunPlan(run=run, data=tmp_path, hardware=PRESETS["cpu"], config=SIZES, recipe=recipe)
    )
    (run / "latest").write_text("step_40\n")
    (run / "best").write_text("step_20\n")
    append_line(run / "metrics.ndjson", {**MOMENT, "step": 20})
    append_line(run / "metrics.ndjson", MOMENT)
    append_line(run / VALIDATIONS, validation(20, "whole", 0.5))
    append_line(run / VALIDATIONS, validation(40, "fast", 0.9))
    append_line(run / VALIDATIONS, validation(40, "whole", 0.4))
    return run


def test_a_run_is_told_from_its_files_and_none_is_touched(run: Path):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    status = read_status(run)
    assert (status["step"], status["samples"]) == (40, 320)
    assert status["eta_s"] == (480 - 320) / 16
    assert status["phase_share"] == {"data": 0.1, "forward": 0.5, "other": pytest.approx(0.4)}
    assert status["last_validation"]["step"] == 40
    assert status["last_validation"]["kind"] == "whole"
    assert status["best_validation"]["step"] == 20
    assert status["best_validation"]["exact"] == 0.5
    assert status["checkpoints"] == ["step_9", "step_20", "step_40"]
    assert (status["latest"], status["best"]) == ("step_40", "step_20")
    assert status["process"] is None
    json.dumps(status)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_remains_for_no_time(run: Path):
    append_line(run / "metrics.ndjson", {**MOMENT, "samples": 488})
    output = io.StringIO()
    Console(file=output, width=80).print(table_of(read_status(run)))
    assert "finished" in output.getvalue()
    assert "remaining" not in output.getvalue()


def test_a_line_torn_by_a_kill_does_not_spoil_the_next(run: Path):
    with (run / VALIDATIONS).open("a") as file:
        file.write('{"time": 2000.0, "st')
    append_line(run / VALIDATIONS, {"step": 2})
    assert read_lines(run / VALIDATIONS)[-1] == {"step": 2}


def test_a_run_that_has_only_begun_says_so(run: Path, tmp_path: Path):
    for name in ("metrics.ndjson", VALIDATIONS, "latest", "best"):
        (run / name).unlink()
    status = read_status(run)
    assert status["step"] == 0
    for name in ("eta_s", "best_validation", "latest"):
        assert status[name] is None
    Console(file=io.StringIO()).print(table_of(status))
    with pytest.raises(ValueError, match="holds no run"):
        read_status(tmp_path)
