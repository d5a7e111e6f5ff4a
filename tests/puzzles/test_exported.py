"""Exported puzzles become a data set. Faulty ones are named with their place and left out."""

import json
from pathlib import Path

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.build import import_file
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.data.sources import is_held_out_N
from hrm_puzzles.puzzle import Notation

SUDOKU = registry.get("sudoku-4x4")
ROWS = Notation(kind="rows", blank=0)


def exported(count: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    objects: list[dict[str, object]] = []
    for _ in range(count):
        example = SUDOKU.generate(rng, "easy")
        question = SUDOKU.write(example.question, ROWS)
        answer = SUDOKU.write(example.answer, ROWS)
        objects.append({"puzzle": question, "solution": answer, "more": 1})
    return objects


def test_a_list_and_lines_make_the_same_data_set(tmp_path: Path) -> None:
    objects = exported(20)
    (tmp_path / "a.json").write_text(json.dumps(objects))
    (tmp_path / "b.ndjson").write_text("\n".join(map(json.dumps, objects)) + "\n\n")
    made = import_file(tmp_path / "a.json", SUDOKU, tmp_path / "a")
    import_file(tmp_path / "b.ndjson", SUDOKU, tmp_path / "b")
    assert made.num_train + made.num_test == 20
    assert min(made.num_train, made.num_test) > 0
    one = open_split(tmp_path / "a", "train")
    other = open_split(tmp_path / "b", "train")
    assert np.array_equal(one.inputs_NT, other.inputs_NT)
    assert inspect(tmp_path / "a").faults == []
    test = open_split(tmp_path / "a", "test")
    inputs_NT = np.asarray(test.inputs_NT)
    assert is_held_out_N(SUDOKU, inputs_NT, np.asarray(test.labels_NT)).all()


def test_bad_puzzles_are_named_and_left_out(tmp_path: Path) -> None:
    good, other, wrong = exported(3)
    assert other["solution"] != wrong["solution"]
    wrong["solution"] = other["solution"]
    lines = [
        json.dumps(good),
        "{",
        json.dumps({"puzzle": "1"}),
        "",
        json.dumps({"puzzle": "12", "solution": "1"}),
        json.dumps(wrong),
    ]
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join(lines))
    imported = import_file(file, SUDOKU, tmp_path / "data", split="train")
    assert (imported.num_train, imported.num_test) == (1, 0)
    places = [fault.partition(":")[0] for fault in imported.faults]
    assert places == ["line 2", "line 3", "line 5", "line 6"]
    assert "not an object with puzzle and solution" in imported.faults[0]
    assert "does not solve" in imported.faults[3]
    assert imported.fingerprint == fingerprint(tmp_path / "data")


def test_a_file_without_a_good_puzzle_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for content in ("", "[]", '[{"puzzle": 5, "solution": 5}]', "[1"):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(DatasetError, match=r"; write .*puzzle"):
            import_file(tmp_path / "x.json", SUDOKU, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_puzzles_of_one_task_share_its_id(tmp_path: Path) -> None:
    objects: list[object] = []
    for number, name in enumerate("baba"):
        question = {"task": name, "input": [[number]]}
        objects.append({"puzzle": question, "solution": [[number, number]]})
    file = tmp_path / "x.json"
    out = tmp_path / "data"
    file.write_text(json.dumps(objects))
    import_file(file, registry.get("arc-10x10"), out, split="test")
    split = open_split(out, "test")
    assert json.loads((out / "identifiers.json").read_text()) == ["<blank>", "a", "b"]
    assert split.puzzle_ids_N.tolist() == [1, 1, 2, 2]
    assert split.group_offsets.tolist() == [0, 1, 2]
    assert split.meta.mean_puzzle_examples == 2.0
    assert inspect(out).puzzle == "arc-10x10"
