"""Further examples of ARC tasks: their layouts, what keeps test pairs unseen, and their license."""

import gzip
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from puzzle_tools import write_tasks

from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.arc.examples import num_by_task_in
from hrm_puzzles.arc.variants import variant_of
from hrm_puzzles.data.datasets import BuiltSet, DatasetError, fingerprint, open_split

SMALL = Arc(name="arc-10x10", side=10)
LICENSE = "MIT License\n\nCopyright (c) the author of the examples\n"


def pair(*colors: int) -> dict[str, list[list[int]]]:
    return {"input": [list(colors)], "output": [[color] for color in colors]}


TASKS = {
    "training/aaa": {"train": [pair(1, 2), pair(3, 4)], "test": [pair(1, 2, 3)]},
    "training/bbb": {"train": [pair(5, 6)], "test": [pair(7, 8, 9)]},
}
EXAMPLES = {
    "aaa": [pair(2, 2, 3, 4), pair(*range(10), 1), pair(5, 4, 3, 2)],  # the second is too wide
    "bbb": [pair(1, 1, 1)],
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks", TASKS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for examples, with a license."""
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "LICENSE").write_text(LICENSE)
    return folder


def as_json(folder: Path, examples: Any) -> Path:
    file = folder / "examples.json"
    file.write_text(json.dumps(examples))
    return file


def as_gzip(folder: Path, examples: Any) -> Path:
    file = folder / "examples.json.gz"
    file.write_bytes(gzip.compress(json.dumps(examples).encode()))
    return file


def as_published(folder: Path, examples: Any) -> Path:
    """RE-ARC's folder: a file for each task, and metadata about them."""
    write_tasks(folder / "re_arc" / "tasks", examples)
    (folder / "re_arc" / "metadata.json").write_text("{}")
    return folder / "re_arc"


def as_zip(folder: Path, examples: Any) -> Path:
    file = folder / "re_arc.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for name, pairs in examples.items():
            archive.writestr(f"re_arc/tasks/{name}.json", json.dumps(pairs))
        archive.writestr("re_arc/metadata.json", "{}")
        archive.writestr("__MACOSX/re_arc/tasks/._aaa.json", b"\0\5\x16\7")
    return file


def build(tasks: Path, more: Path | None, out: Path, **changes: Any) -> BuiltSet:
    values = {"augment": 3, "hold_out_all": True, **changes}
    if more is not None:
        license_file = tasks.parent / "examples" / "LICENSE"
        values = {"more": more, "more_license": license_file, **values}
    return build_arc(ArcRecipe(puzzle=SMALL.name, dataset=str(tasks), **values), SMALL, out)


def examples_of(data: Path, split: str) -> Counter[str]:
    """The number of examples of each task in a split, in each variant."""
    identifiers = json.loads((data / "identifiers.json").read_text())
    names = [identifiers[row] for row in open_split(data, split, SMALL).puzzle_ids_N]
    assert {variant_of(name)[0] for name in identifiers[1:]} == {"aaa", "bbb"}
    return Counter(name for name in names if variant_of(name)[0] == name)


@pytest.mark.parametrize("written", [as_json, as_gzip, as_published, as_zip])
def test_examples_in_every_layout_join_the_demonstrations_of_their_task(
    written: Callable[[Path, Any], Path], tasks: Path, folder: Path, tmp_path: Path
):
    built = build(tasks, written(folder, EXAMPLES), tmp_path / "data")
    assert (built.num_more, built.num_more_left_out) == (3, 1)
    assert examples_of(tmp_path / "data", "train") == {"aaa": 4, "bbb": 2}
    assert examples_of(tmp_path / "data", "test") == {"aaa": 1, "bbb": 1}
    split = open_split(tmp_path / "data", "train", SMALL)
    assert np.diff(split.puzzle_offsets).tolist() == 4 * [4] + 4 * [2]  # in each variant
    assert built.num_train == len(split) == 24


def test_a_data_set_without_further_examples_keeps_its_bytes(tasks: Path, tmp_path: Path):
    assert build(tasks, None, tmp_path / "data").num_more is None
    names = {"identifiers.json", "recipe.json", "test", "train"}
    assert {file.name for file in (tmp_path / "data").iterdir()} == names
    recipe = json.loads((tmp_path / "data" / "recipe.json").read_text())
    assert not [name for name in recipe if name.startswith("more")]


def test_source_and_license_are_recorded(tasks: Path, folder: Path, tmp_path: Path):
    file = as_json(folder, EXAMPLES)
    built = build(tasks, file, tmp_path / "data")
    recorded = json.loads((tmp_path / "data" / "recipe.json").read_text())["more"]
    assert recorded == {
        "file": "examples.json",
        "sha256": recorded["sha256"],
        "license": "MIT License",
        "num_left_out": 1,
        "num_by_task": {"aaa": 2, "bbb": 1},
    }
    assert num_by_task_in(tmp_path / "data") == {"aaa": 2, "bbb": 1}
    assert str(tmp_path) not in (tmp_path / "data" / "recipe.json").read_text()
    assert (tmp_path / "data" / "LICENSE-more.txt").read_text() == LICENSE
    named = tmp_path / "terms.txt"
    named.write_text("Public domain\n")
    other = build(tasks, file, tmp_path / "other", more_license=named)
    assert (tmp_path / "other" / "LICENSE-more.txt").read_text() == "Public domain\n"
    assert other.fingerprint != built.fingerprint


def test_changed_examples_begin_anew(
    tasks: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = as_json(folder, EXAMPLES)
    with monkeypatch.context() as patched:
        patched.setattr("hrm_puzzles.arc.build.publish", _stop)
        with pytest.raises(KeyboardInterrupt):
            build(tasks, file, tmp_path / "data")
    as_json(folder, {"aaa": [pair(6, 6, 6, 6)]})
    build(tasks, file, tmp_path / "data")
    build(tasks, file, tmp_path / "fresh")
    assert fingerprint(tmp_path / "data") == fingerprint(tmp_path / "fresh")


def _stop(*_: Path) -> None:
    raise KeyboardInterrupt


def test_copies_of_test_inputs_and_grids_beyond_any_canvas_are_left_out(
    tasks: Path, folder: Path, tmp_path: Path
):
    turned = {"input": [[3], [2], [1]], "output": [[1, 1]]}
    recolored = pair(4, 9, 6)
    kept = pair(4, 9, 4)  # as wide as the test input, but with two colors
    too_wide = {"input": [[1] * 31], "output": [[1]]}
    examples = {"aaa": [too_wide, turned, recolored, kept], "bbb": [pair(1, 2)]}
    built = build(tasks, as_json(folder, examples), tmp_path / "data")
    assert (built.num_more, built.num_more_left_out) == (2, 3)


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        ({"aaa": [pair(1, 2, 3)]}, "task aaa, example 0: the input is that of an official test"),
        ({"zzz": [pair(1, 2)]}, "1 unknown tasks, the first 'zzz'; remove them"),
        ({"aaa": [{"input": [[1], [2, 3]], "output": [[1]]}]}, "row 2 has 2 cells"),
        ({"aaa": [{"input": [[1]]}]}, "example 0: .*'output'.*write a list of"),
        ({}, "holds no examples; give a folder"),
    ],
)
def test_faulty_examples(examples: Any, problem: str, tasks: Path, folder: Path, tmp_path: Path):
    file = as_json(folder, examples)
    with pytest.raises(DatasetError) as caught:
        build(tasks, file, tmp_path / "data")
    message = str(caught.value)
    assert re.search(problem, message), message
    assert message.startswith((str(file), f"cannot read {file}"))
    assert message.endswith(".")
    assert "\n" not in message
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("written", [as_json, as_gzip, as_zip])
def test_nonsense_and_a_file_that_ends_early_are_rejected(
    written: Callable[[Path, Any], Path], tasks: Path, folder: Path, tmp_path: Path
):
    file = written(folder, EXAMPLES)
    for content in (file.read_bytes()[:-20], b"\x1f\x8b nonsense"):
        file.write_bytes(content)
        with pytest.raises(DatasetError, match=f"cannot read .*{file.name}"):
            build(tasks, file, tmp_path / "data")


def test_examples_need_a_license(tasks: Path, folder: Path, tmp_path: Path):
    file = as_json(folder, EXAMPLES)
    (folder / "LICENSE").write_text(" \n")
    with pytest.raises(DatasetError, match="LICENSE is empty; write the terms"):
        build(tasks, file, tmp_path / "data")
    (folder / "LICENSE").unlink()
    with pytest.raises(DatasetError, match=r"cannot read the license .*LICENSE"):
        build(tasks, file, tmp_path / "data")
    with pytest.raises(DatasetError, match=r"with --more-license FILE"):
        build(tasks, file, tmp_path / "data", more_license=None)
