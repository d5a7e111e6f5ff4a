"""Exported puzzles become a data set; what is wrong with one is told with its place, and the others are kept."""

import json
from pathlib import Path

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.build import import_file
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.data.sources import MIXED, difficulties_of, is_held_out_N
from hrm_puzzles.puzzle import Notation

SUDOKU = registry.get("sudoku-4x4")
ROWS = Notation(kind="rows", blank=0)


def exported(count: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    examples = [SUDOKU.generate(rng, difficulties_of(SUDOKU, MIXED)[0]) for _ in range(count)]
    return [
        {
            "puzzle": SUDOKU.write(example.question, ROWS),
            "solution": SUDOKU.write(example.answer, ROWS),
            "more": 1,
        }
        for example in examples
    ]


def test_a_list_and_lines_make_the_same_data_set(tmp_path: Path) -> None:
    objects = exported(20)
    (tmp_path / "a.json").write_text(json.dumps(objects))
    (tmp_path / "b.ndjson").write_text("\n".join(map(json.dumps, objects)) + "\n\n")
    made = [
        import_file(tmp_path / name, SUDOKU, tmp_path / name[0]) for name in ("a.json", "b.ndjson")
    ]
    assert made[0].num_train + made[0].num_test == 20
    assert min(made[0].num_train, made[0].num_test) > 0
    assert np.array_equal(*(open_split(tmp_path / name, "train").inputs_NT for name in "ab"))
    assert inspect(tmp_path / "a").faults == []
    test = open_split(tmp_path / "a", "test")
    assert is_held_out_N(SUDOKU, np.asarray(test.inputs_NT), np.asarray(test.labels_NT)).all()


def test_bad_puzzles_are_named_and_left_out(tmp_path: Path) -> None:
    good, other, wrong = exported(3)
    wrong["solution"] = (
        other["solution"] if other["solution"] != wrong["solution"] else good["solution"]
    )
    lines = [
        json.dumps(good),
        "{",
        json.dumps({"puzzle": "1"}),
        "",
        json.dumps({"puzzle": "12", "solution": "1"}),
    ]
    (tmp_path / "x.ndjson").write_text("\n".join([*lines, json.dumps(wrong)]))
    imported = import_file(tmp_path / "x.ndjson", SUDOKU, tmp_path / "data", split="train")
    assert (imported.num_train, imported.num_test) == (1, 0)
    assert [fault.partition(":")[0] for fault in imported.faults] == [
        "line 2",
        "line 3",
        "line 5",
        "line 6",
    ]
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
    objects = [
        {"puzzle": {"task": name, "input": [[n]]}, "solution": [[n, n]]}
        for n, name in enumerate("baba")
    ]
    (tmp_path / "x.json").write_text(json.dumps(objects))
    import_file(tmp_path / "x.json", registry.get("arc-10x10"), tmp_path / "data", split="test")
    split = open_split(tmp_path / "data", "test")
    assert json.loads((tmp_path / "data" / "identifiers.json").read_text()) == ["<blank>", "a", "b"]
    assert split.puzzle_ids_N.tolist() == [1, 1, 2, 2]
    assert split.group_offsets.tolist() == [0, 1, 2]
    assert split.meta.mean_puzzle_examples == 2.0
    assert inspect(tmp_path / "data").puzzle == "arc-10x10"


def test_text_is_read_as_well_as_lists(tmp_path: Path) -> None:
    maze = registry.get("maze-10x10")
    example = maze.generate(np.random.default_rng(0), maze.difficulties[0])
    question, answer = (
        "".join(" #SGo"[value] for value in grid.flat)
        for grid in (example.question, example.answer)
    )
    (tmp_path / "x.json").write_text(json.dumps({"puzzle": question, "solution": answer}))
    assert import_file(tmp_path / "x.json", maze, tmp_path / "data", split="train").faults == []
