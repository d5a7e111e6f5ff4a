"""`hrm-data` for every puzzle: generated, from published files, and inspected."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli_tools import invoked, json_of, rejected, succeeded
from puzzle_tools import write_tasks
from service_tools import command, wait_for

from hrm_puzzles import cli, registry
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split, write_split
from hrm_puzzles.data.sources import downloaded

HEADER = "source,question,answer,rating"
ROWS = ["made,1.3.34122143432.,1234341221434321,0", "made,.234341221434321,1234341221434321,3"]


run = partial(succeeded, cli.main)
refused = partial(rejected, cli.main)


def csv_files(folder: Path) -> tuple[Path, Path]:
    """Small files of the published form. The rows are not equivalent."""
    train = folder / "train.csv"
    test = folder / "test.csv"
    train.write_text(f"{HEADER}\n{ROWS[0]}\n")
    test.write_text(f"{HEADER}\n{ROWS[1]}\n")
    return train, test


def num_examples(path: Path, split: str = "train") -> int:
    return len(open_split(path, split, registry.get("sudoku-4x4")))


def test_the_city_set_has_the_published_counts():
    assert usual_counts(registry.get("logistics")) == (960, 400)


def test_csv_rows_come_alone_unless_a_number_is_passed(tmp_path: Path):
    train, test = csv_files(tmp_path)
    files = ("--csv-train", train, "--csv-test", test)
    run("build", "sudoku-4x4", "--out", tmp_path / "a", *files)
    run("build", "sudoku-4x4", "--out", tmp_path / "b", *files, "--train", 4)
    assert num_examples(tmp_path / "a") == 1
    assert num_examples(tmp_path / "b") == 5


def test_a_sample_of_csv_rows_is_the_same_for_a_seed(tmp_path: Path):
    train, test = csv_files(tmp_path)
    rows = [ROWS[0].replace(",0", f",{rating}") for rating in range(20)]
    train.write_text("\n".join([HEADER, *rows]))
    ratings = []
    for name in ("a", "b"):
        options = ("--csv-train", train, "--csv-test", test, "--csv-sample", 5)
        run("build", "sudoku-4x4", "--out", tmp_path / name, *options)
        ratings_N = open_split(tmp_path / name, "train", registry.get("sudoku-4x4")).ratings_N
        ratings.append(ratings_N.tolist())
    assert len(ratings[0]) == 5
    assert ratings[0] == ratings[1]


def test_hub_sets_are_built_if_the_client_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    csv_files(tmp_path)

    def download(repo_id: str, filename: str, *, repo_type: str) -> str:
        assert (repo_id, repo_type) == ("org/name", "dataset")
        return str(tmp_path / filename)

    client = SimpleNamespace(hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    run("build", "sudoku-4x4", "--out", tmp_path / "a", "--source", "hub:org/name")
    assert num_examples(tmp_path / "a", "train") == 1
    assert num_examples(tmp_path / "a", "test") == 1
    with pytest.raises(DatasetError, match="write hub:ORG/NAME"):
        downloaded("hub:name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DatasetError, match=r"pip install 'hrm-edge\[hub\]'"):
        downloaded("hub:org/name")


DEEP = b"[" * 100_000 + b"]" * 100_000
NONSENSE = [DEEP, b"5", b"\0" * 100, b"\xff\xfe"]
READERS = {
    "tasks": ("build", "arc", "--dataset", "TASKS"),
    "import": ("import", "FILE", "sudoku"),
    "csv": ("build", "sudoku", "--csv-train", "FILE", "--csv-test", "FILE"),
}


@pytest.mark.parametrize("content", NONSENSE, ids=["deep", "number", "zeros", "bytes"])
@pytest.mark.parametrize("reader", READERS)
def test_nonsense_is_one_sentence(reader: str, content: bytes, tmp_path: Path):
    file = tmp_path / "tasks" / "training" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    paths = {"TASKS": tmp_path / "tasks", "FILE": file}
    arguments = [paths.get(argument, argument) for argument in READERS[reader]]
    message = refused(*arguments, "--out", tmp_path / "data")
    assert "a.json" in message


@pytest.mark.parametrize("content", [DEEP, b"[5]", b'{"sets": 5}'], ids=["deep", "list", "object"])
def test_nonsense_in_a_data_set_is_one_sentence(content: bytes, tmp_path: Path):
    out = tmp_path / "data"
    inspect = ("inspect", out)
    run("build", "sudoku-4x4", "--out", out, "--train", 1, "--test", 1)
    for name in ("recipe.json", "identifiers.json"):
        (out / name).write_bytes(content)
        assert run(*inspect, "--puzzle", "sudoku-4x4").stderr == ""
    named = "does not name its puzzle; name one of sudoku, sudoku-6x6"
    assert named in refused(*inspect)
    file = out / "train" / "dataset.json"
    meta = json.loads(file.read_text())
    for text in (content.decode(), json.dumps({**meta, "sets": 5})):
        file.write_text(text)
        assert refused(*inspect, "--puzzle", "sudoku-4x4")


def exported(task: str) -> dict[str, object]:
    return {"puzzle": {"task": task, "input": [[1]]}, "solution": [[2]]}


def test_names_of_a_data_set_cannot_control_a_terminal(tmp_path: Path):
    bad_name = "\x1b[31m\u202e"
    out = tmp_path / "data"
    file = tmp_path / "x.json"
    file.write_text(json.dumps([exported("good"), exported(bad_name)]))
    printed = invoked(cli.main, "import", file, "arc-7x7", "--split", "train", "--out", out)
    assert printed.exit_code == 1
    assert r"'\x1b[31m\u202e' is not the name of a task" in printed.stderr


@pytest.mark.parametrize(
    ("puzzle", "options", "said"),
    [
        ("arc", ("--train", "4"), "--train does not apply to arc"),
        ("sudoku-4x4", ("--more", "x.json"), "--more does not apply to sudoku-4x4"),
        ("arc-7x7", ("--more", "/no.json", "--more-license", "/no"), "cannot read /no.json"),
        ("chess", (), "use one of sudoku"),
    ],
)
def test_options_without_effect(puzzle: str, options: tuple[str, ...], said: str, tmp_path: Path):
    assert said in refused("build", puzzle, "--out", tmp_path / "data", *options)
    assert list(tmp_path.iterdir()) == []


def test_arc_is_built_and_inspected(tmp_path: Path):
    pair = {"input": [[1, 2]], "output": [[2], [1]]}
    other = {"input": [[3, 3]], "output": [[3], [3]]}
    third = {"input": [[5]], "output": [[6, 6]]}
    shown = {"training/aaa": pair, "evaluation/bbb": third}
    contents = {name: {"train": [one], "test": [other]} for name, one in shown.items()}
    tasks = write_tasks(tmp_path / "tasks", contents)
    out = tmp_path / "data"
    printed = run("build", "arc-10x10", "--out", out, "--dataset", tasks, "--augment", 5)
    assert "2 tasks in 12 variants" in printed.stdout
    report = json_of(cli.main, "inspect", out)
    assert report["puzzle"] == "arc-10x10"
    assert (report["num_shared"], report["num_equivalent"]) == (0, 6)
    assert "train 0, puzzle id 1" in run("inspect", out).stdout


def test_malformed_labels_and_shared_questions_are_faults_of_arc(tmp_path: Path):
    arc = registry.get("arc-10x10")
    grids = [np.full((2, 3), value, dtype=np.int8) for value in range(3)]
    rows = np.stack([arc.encode(grid) for grid in grids])
    write_split(tmp_path, "test", rows, rows, puzzle=arc)
    broken = rows.copy()
    broken[2, 0] = 0
    write_split(tmp_path, "train", rows[1:], broken[1:], puzzle=arc)
    ended = invoked(cli.main, "inspect", tmp_path, "--puzzle", arc.name)
    found = ended.stdout
    assert ended.exit_code == 1
    assert "FAULT: train has 1 wrong label, the first at index 1." in found
    assert "\n\ntrain 1\n" in found  # the wrong example is shown
    assert "FAULT: 2 test questions are in train under the same puzzle id." in found


def test_what_interrupted_builds_left_is_named_and_kept(tmp_path: Path):
    build = ("build", "sudoku-4x4", "--train", 4, "--test", 2, "--out")
    names = (".mine.tmp-123456789", ".mine.chunks-0123456789ab", ".other.tmp-1")
    killed, stopped, foreign = [tmp_path / name for name in names]
    for folder in (killed, stopped, foreign):
        folder.mkdir()
    said = run(*build, tmp_path / "mine").stderr
    left = "is left from an interrupted build"
    assert f"{killed} {left}: remove it, unless that build still runs\n" in said
    assert f"{stopped} {left}: the same command continues it; otherwise remove it" in said
    assert str(foreign) not in said
    assert killed.exists()
    assert stopped.exists()
    assert "interrupted" not in run(*build, tmp_path / "yours").stderr


@pytest.mark.process
def test_a_killed_build_goes_on(tmp_path: Path):
    recipe = ("build", "sudoku-6x6", "--train", 500, "--test", 10, "--out")
    process = subprocess.Popen(command("data", *recipe, tmp_path / "x"), start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob(".x.chunks-*/train-*.npy"))) > 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "x").exists()
    assert "the same command continues it" in run(*recipe, tmp_path / "x").stderr
    run(*recipe, tmp_path / "whole")
    assert fingerprint(tmp_path / "x") == fingerprint(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole", "x"]


def test_command_builds_and_inspects(tmp_path: Path):
    out = tmp_path / "data"
    build = ("build", "sudoku-4x4", "--out", out, "--train", 9, "--test", 4)
    assert json_of(cli.main, *build)["num_train"] == 9
    report = json_of(cli.main, "inspect", out)
    assert (report["puzzle"], report["faults"], report["num_shared"]) == ("sudoku-4x4", [], 0)
    said = run("inspect", out).stdout
    assert "no faults" in said
    assert "------+------" in said
    assert "already exists" in refused(*build)
    message = refused("inspect", out, "--puzzle", "sudoku")
    assert "has 16 positions of 6 tokens, but sudoku has 81 of 11; choose another" in message
