"""A run told from its files alone, whole ones and torn ones, while it is written and after."""

import io
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from hrm_train.checkpoints import sole_writer, writer_of
from hrm_train.status import VALIDATIONS, append_line, read_lines, read_status, table_of, watch

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
    "train": {
        "loss": 1.5,
        "answer_loss": 1.25,
        "exact": 0.25,
        "cells": 0.875,
        "segments": 3.5,
        "lr": 2.5e-4,
    },
    "system": {"gpu_power_w": 120.0},
}

HOLD = """
import sys
from pathlib import Path
from hrm_train.checkpoints import sole_writer

with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def validation(step: int, kind: str, score: float) -> str:
    row = {
        "time": 1.0,
        "step": step,
        "samples": 8 * step,
        "kind": kind,
        "score": score,
        "exact": [0.0, score],
        "cells": [score],
    }
    return (
        json.dumps(
            {**row, "proven": [0.0, score], "proof_exists": True, "num_puzzles": 40, "loss": 2.0}
        )
        + "\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for name in ("step_20", "step_40", "step_9"):
        (run / name).mkdir(parents=True)
    (run / "run.json").write_text(
        json.dumps({"recipe": {"puzzle": "sudoku-4x4", "total_samples": 480}})
    )
    (run / "latest").write_text("step_40\n")
    (run / "best").write_text("step_20\n")
    (run / "metrics.ndjson").write_text(
        json.dumps({**MOMENT, "step": 20}) + "\n" + json.dumps(MOMENT) + "\n"
    )
    lines = [
        validation(20, "whole", 0.5),
        validation(40, "fast", 0.9),
        validation(40, "whole", 0.4),
    ]
    (run / "validation.ndjson").write_text("".join(lines))
    return run


def test_a_run_is_told_from_its_files(run: Path) -> None:
    status = read_status(run)
    assert (status["step"], status["samples"], status["eta_s"]) == (40, 320, (480 - 320) / 16)
    assert status["phase_share"] == {"data": 0.1, "forward": 0.5, "other": pytest.approx(0.4)}
    assert (status["last_validation"]["step"], status["last_validation"]["kind"]) == (40, "whole")
    assert (status["best_validation"]["step"], status["best_validation"]["exact"]) == (20, 0.5)
    assert status["checkpoints"] == ["step_9", "step_20", "step_40"]
    assert (status["latest"], status["best"]) == ("step_40", "step_20")
    assert json.loads(json.dumps(status))["process"] is None


def test_a_line_torn_by_a_kill_is_passed_over(run: Path) -> None:
    for name in ("metrics.ndjson", "validation.ndjson"):
        with (run / name).open("a") as file:
            file.write('{"time": 2000.0, "st')
    assert read_status(run)["step"] == 40


def test_a_run_that_has_only_begun_says_so(run: Path) -> None:
    for name in ("metrics.ndjson", "validation.ndjson", "latest", "best"):
        (run / name).unlink()
    status = read_status(run)
    assert (status["step"], status["eta_s"], status["best_validation"], status["latest"]) == (
        0,
        None,
        None,
        None,
    )
    Console(file=io.StringIO()).print(table_of(status))


def test_the_table_names_what_counts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=120).print(table_of(read_status(run)))
    shown = capsys.readouterr().out
    for part in (
        "320 of 480",
        "data 10 %",
        "step_20 (best)",
        "step_40 (latest)",
        "50.0 % proven",
        "no process",
    ):
        assert part in shown
    for part in (
        "one in a hundred 180.0 ms",
        "1.2500",
        "87.50%",
        "3.50",
        "0.00025",
        "cpu_cores 1.5, gpu_power_w 120",
    ):
        assert part in shown


def test_watching_shows_a_run_again_until_nobody_writes_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, writing = Console(file=io.StringIO(), force_terminal=True, width=120), ExitStack()
    writing.enter_context(sole_writer(run))

    def step_and_end(_seconds: float) -> None:
        (run / "metrics.ndjson").write_text(json.dumps({**MOMENT, "samples": 400}) + "\n")
        writing.close()

    monkeypatch.setattr("hrm_train.status.time.sleep", step_and_end)
    watch(run, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.index("320 of 480") < shown.index("400 of 480")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        read_status(tmp_path)


@pytest.mark.process
def test_a_writer_is_seen_until_it_ends_however_it_ends(run: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(run)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    assert writer_of(run) == str(writer.pid)
    with (
        pytest.raises(ValueError, match=f"another process \\(process {writer.pid}\\)"),
        sole_writer(run),
    ):
        pass
    writer.kill()
    writer.communicate()
    assert writer_of(run) is None
    with sole_writer(run):
        assert writer_of(run) is not None


def test_looking_at_a_run_neither_makes_nor_changes_files(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    time.sleep(0.01)
    read_status(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_line_added_behind_a_torn_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / VALIDATIONS
    for torn in ("", '{"step": 1}\n{"st'):
        file.write_text(torn)
        append_line(file, {"step": 2})
        append_line(file, {"step": 3})
        assert read_lines(file)[-2:] == [{"step": 2}, {"step": 3}]
