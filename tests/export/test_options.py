"""What follows from the options of hrm-export before anything is computed.

Shapes: T tokens.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from export_tools import made_questions, small_model

from hrm_export.contents import Options, bundle_name, data_of, find_puzzles, parse_loop
from hrm_host.progress import Stages
from hrm_puzzles import registry
from hrm_puzzles.data import datasets

SUDOKU = registry.get("sudoku-4x4")
CONFIG = small_model(num_puzzle_ids=1).config


def options(**changes: object) -> Options:
    return Options(**{"source": Path("runs/tiny/best"), "out": Path("tiny.bundle"), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "segments"), [("host", None), ("unrolled", 0), ("unrolled=1", 1), ("unrolled=16", 16)]
)
def test_the_loop_is_the_runtimes_or_so_many_segments(text: str, segments: int | None) -> None:
    assert parse_loop(text) == segments


@pytest.mark.parametrize("text", ["", "unrolled=", "unrolled=0", "unrolled=-1", "unrolled=x", "while", "host=2"])
def test_another_loop_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give host, unrolled or unrolled=N"):
        parse_loop(text)


def test_a_bundle_is_called_after_its_run_or_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "city"
    (run / "step_7").mkdir(parents=True)
    (run / "best").write_text("step_7")
    assert bundle_name(run / "best") == bundle_name(run / "step_7") == "city"
    assert bundle_name(tmp_path / "checkpoints" / "sudoku") == "sudoku"


def test_what_calibrates_is_not_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hrm_export.contents.NUM_CALIBRATION", 25)
    calibration, held_out = find_puzzles(options(fp16=True, held_out=30), CONFIG, SUDOKU, None, Stages())
    assert (len(calibration), len(held_out)) == (25, 30)
    both = [{tokens_T.tobytes() for tokens_T in questions.tokens_NT} for questions in (calibration, held_out)]
    assert not both[0] & both[1]


def test_of_a_small_data_set_a_quarter_calibrates(tmp_path: Path) -> None:
    questions = made_questions(SUDOKU, 20)
    datasets.write_split(tmp_path, "test", questions.tokens_NT, questions.labels_NT, puzzle=SUDOKU)
    asked = options(int8=True, calib=str(tmp_path))
    calibration, held_out = find_puzzles(asked, CONFIG, SUDOKU, None, Stages())
    assert (len(calibration), len(held_out)) == (5, 15)


def test_float32_alone_needs_nothing_to_calibrate_with() -> None:
    calibration, held_out = find_puzzles(options(held_out=12), CONFIG, SUDOKU, None, Stages())
    assert (len(calibration), len(held_out)) == (0, 12)


def test_puzzles_with_ids_the_model_does_not_know_are_refused(tmp_path: Path) -> None:
    questions = made_questions(SUDOKU, 4)
    layout = replace(datasets.Layout.of_variants(4, 1), puzzle_ids=np.arange(4, dtype=np.int32), num_puzzle_ids=4)
    datasets.write_split(tmp_path, "test", questions.tokens_NT, questions.labels_NT, puzzle=SUDOKU, layout=layout)
    with pytest.raises(datasets.DatasetError, match="ids up to 3 where the model knows 1; give the data set"):
        find_puzzles(options(data=tmp_path), CONFIG, SUDOKU, tmp_path, Stages())


def test_a_model_of_many_tasks_finds_the_data_set_of_its_run(tmp_path: Path) -> None:
    many = small_model(num_puzzle_ids=3).config
    (tmp_path / "set").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"data": str(tmp_path / "set")}))
    asked = options(source=tmp_path / "best")
    assert data_of(asked, many) == tmp_path / "set"
    assert data_of(asked, CONFIG) is None
    with pytest.raises(ValueError, match="give it with --data"):
        data_of(options(), many)
