"""`hrm-data` for every puzzle: out of the box, from published files, with pictures; failures are one sentence."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from service_tools import command

from hrm_puzzles import cli, registry
from hrm_puzzles.data.build import usual_counts
from hrm_puzzles.data.datasets import DatasetError, open_split, write_split
from hrm_puzzles.data.inspection import inspect, puzzle_at
from hrm_puzzles.data.sources import downloaded

HEADER = "source,question,answer,rating"
ROWS = ["made,1.3.34122143432.,1234341221434321,0", "made,.234341221434321,1234341221434321,3"]


class Printed(NamedTuple):
    out: str
    err: str


Run = Callable[..., Printed]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command to its end, see that it ends with a code, and give what it printed."""

    def printed(*arguments: object, code: int = 0) -> Printed:
        monkeypatch.setattr(sys, "argv", ["hrm-data", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert int(caught.value.code or 0) == code
        return Printed(*capsys.readouterr())

    return printed


def csv_files(folder: Path) -> tuple[Path, Path]:
    """Small files of the published form; the rows are not equivalent."""
    for name, row in zip(("train.csv", "test.csv"), ROWS, strict=True):
        (folder / name).write_text(f"{HEADER}\n{row}\n")
    return folder / "train.csv", folder / "test.csv"


@pytest.mark.parametrize("puzzle", ["maze-10x10", "logistics-6x6"])
def test_generated_sets_of_grid_puzzles_are_whole(puzzle: str, tmp_path: Path, run: Run) -> None:
    out, kind = tmp_path / "data", registry.get(puzzle)
    built = json.loads(run("build", puzzle, "--out", out, "--train", 6, "--test", 3, "--json").out)
    assert (built["num_train"], built["num_test"]) == (6, 3)
    assert built["seconds"] > 0
    assert f"puzzle {puzzle}\n" in run("inspect", out).out
    meta = json.loads((out / "train" / "dataset.json").read_text())
    assert meta == {
        "pad_id": 0,
        "ignore_label_id": 0,
        "blank_identifier_id": 0,
        "vocab_size": kind.vocab_size,
        "seq_len": kind.seq_len,
        "num_puzzle_identifiers": 1,
        "total_groups": 6,
        "mean_puzzle_examples": 1.0,
        "sets": ["all"],
        "total_puzzles": 6,
    }
    assert json.loads((out / "identifiers.json").read_text()) == ["<blank>"]
    arrays = {file.stem: np.load(file) for file in (out / "train").glob("*.npy")}
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "all__inputs": ("uint8", (6, kind.seq_len)),
        "all__labels": ("uint8", (6, kind.seq_len)),
        "all__puzzle_identifiers": ("int32", (6,)),
        "all__puzzle_indices": ("int32", (7,)),
        "all__group_indices": ("int32", (7,)),
        "all__ratings": ("int32", (6,)),
    }


def test_the_city_set_has_the_published_counts() -> None:
    assert usual_counts(registry.get("logistics")) == (960, 400)


def test_csv_rows_come_alone_unless_puzzles_are_asked_for(tmp_path: Path, run: Run) -> None:
    train, test = csv_files(tmp_path)
    files = ("--csv-train", train, "--csv-test", test)
    run("build", "sudoku-4x4", "--out", tmp_path / "a", *files)
    run("build", "sudoku-4x4", "--out", tmp_path / "b", *files, "--train", 4)
    assert [len(open_split(tmp_path / name, "train")) for name in "ab"] == [1, 5]


def test_a_sample_of_csv_rows_is_the_same_for_a_seed(tmp_path: Path, run: Run) -> None:
    train, test = csv_files(tmp_path)
    train.write_text(
        "\n".join([HEADER, *(ROWS[0].replace(",0", f",{rating}") for rating in range(20))])
    )
    for name in "ab":
        options = ("--csv-train", train, "--csv-test", test, "--csv-sample", 5)
        run("build", "sudoku-4x4", "--out", tmp_path / name, *options)
    ratings = [open_split(tmp_path / name, "train").ratings_N for name in "ab"]
    assert ratings[0] is not None
    assert ratings[1] is not None
    assert len(ratings[0]) == 5
    assert np.array_equal(ratings[0], ratings[1])


def hub_client(folder: Path | None) -> ModuleType:
    """A client that finds its files in a folder, or no network."""
    client = ModuleType("huggingface_hub")

    def hf_hub_download(repo_id: str, filename: str, *, repo_type: str) -> str:
        if folder is None:
            raise OSError("no route to host")
        assert (repo_id, repo_type) == ("org/name", "dataset")
        return str(folder / filename)

    client.hf_hub_download = hf_hub_download  # type: ignore[attr-defined]
    return client


def test_published_sets_are_fetched_and_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    csv_files(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub_client(tmp_path))
    run("build", "sudoku-4x4", "--out", tmp_path / "a", "--source", "hub:org/name")
    assert [len(open_split(tmp_path / "a", split)) for split in ("train", "test")] == [1, 1]


def test_a_hub_that_cannot_be_had_is_one_sentence_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DatasetError, match="write hub:ORG/NAME"):
        downloaded("hub:name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub_client(None))
    with pytest.raises(
        DatasetError,
        match=r"cannot fetch hub:org/name \(no route to host\); .* or download train.csv",
    ):
        downloaded("hub:org/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DatasetError, match=r"pip install 'hrm-edge\[hub\]'"):
        downloaded("hub:org/name")


class Loop(BaseHTTPRequestHandler):
    """A hub that sends everybody back to where they are."""

    def do_HEAD(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.process
def test_a_hub_that_redirects_without_end_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with ThreadingHTTPServer(("127.0.0.1", 0), Loop) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        places = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_HOME": str(tmp_path / "hub"),
        }
        asked = command(
            "data", "build", "sudoku", "--out", tmp_path / "data", "--source", "hub:org/name"
        )
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=60, env={**os.environ, **places}
        )
        hub.shutdown()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot fetch hub:org/name (Exceeded" in done.stderr


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "content", [DEEP, f"[{DEEP}]", f'{{"train": {DEEP}}}', "5", "\ufeff[", "\0" * 100, b"\xff\xfe"]
)
@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "arc", "--dataset", "TASKS"),
        ("import", "FILE", "sudoku"),
        ("import", "FILE", "arc"),
        ("build", "sudoku", "--csv-train", "FILE", "--csv-test", "FILE"),
    ],
    ids=["tasks", "import", "import arc", "csv"],
)
def test_a_file_of_nonsense_is_one_sentence(
    arguments: tuple[str, ...], content: str | bytes, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "tasks" / "training" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    places = {"TASKS": tmp_path / "tasks", "FILE": file}
    said = run(*(places.get(one, one) for one in arguments), "--out", tmp_path / "data", code=2).err
    assert (said.count("\n"), "a.json" in said) == (1, True), said


@pytest.mark.parametrize("name", ["recipe.json", "identifiers.json", "train/dataset.json"])
@pytest.mark.parametrize("content", [DEEP, "5", "[5]", '{"sets": 5}', "\0"])
def test_a_data_set_with_a_file_of_nonsense_is_shown_or_refused_in_one_sentence(
    name: str, content: str, tmp_path: Path, run: Run
) -> None:
    run("build", "sudoku-4x4", "--out", tmp_path / "data", "--train", 1, "--test", 1)
    meta = tmp_path / "data" / name
    values = (
        json.loads(meta.read_text())
        if content.startswith("{") and name != "identifiers.json"
        else {}
    )
    meta.write_text(json.dumps({**values, **json.loads(content)}) if values else content)
    is_needed = name == "train/dataset.json"
    said = run("show", tmp_path / "data", "--split", "train", code=2 if is_needed else 0).err
    assert said.count("\n") == (1 if is_needed else 0), said


def test_names_of_a_data_set_command_no_terminal(tmp_path: Path, run: Run) -> None:
    rows = [
        {"puzzle": {"task": name, "input": [[1]]}, "solution": [[2]]}
        for name in ("good", "\x1b[31m\u202e")
    ]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    told = run(
        "import",
        tmp_path / "x.json",
        "arc-7x7",
        "--split",
        "train",
        "--out",
        tmp_path / "data",
        code=1,
    )
    assert r"'\x1b[31m\u202e' is not the name of a task" in told.err
    (tmp_path / "data" / "identifiers.json").write_text(json.dumps(["<blank>", "\x1b[31m\u202e"]))
    assert r"\x1b[31m\u202e" in run("show", tmp_path / "data", "--split", "train").out


def test_files_with_a_byte_order_mark_are_read_without_it(tmp_path: Path, run: Run) -> None:
    train, test = csv_files(tmp_path)
    question, answer = ROWS[0].split(",")[1:3]
    (tmp_path / "x.ndjson").write_text(
        json.dumps({"puzzle": question, "solution": answer}), encoding="utf-8-sig"
    )
    for file in (train, test):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    run("build", "sudoku-4x4", "--out", tmp_path / "a", "--csv-train", train, "--csv-test", test)
    run("import", tmp_path / "x.ndjson", "sudoku-4x4", "--split", "train", "--out", tmp_path / "b")


@pytest.mark.parametrize(
    ("puzzle", "options", "said"),
    [
        ("arc", ("--train", "4"), "--train does not apply to arc"),
        ("sudoku-4x4", ("--augment", "4"), "--augment does not apply to sudoku-4x4"),
        ("arc", ("--dataset", "/nowhere"), "/nowhere does not exist"),
        ("chess", (), "use one of sudoku"),
    ],
)
def test_what_has_no_effect_or_is_not_there_is_refused(
    puzzle: str, options: tuple[str, ...], said: str, tmp_path: Path, run: Run
) -> None:
    assert said in run("build", puzzle, "--out", tmp_path / "data", *options, code=2).err
    assert list(tmp_path.iterdir()) == []


def test_arc_is_built_inspected_and_shown(tmp_path: Path, run: Run) -> None:
    pair = {"input": [[1, 2]], "output": [[2], [1]]}
    other = {"input": [[3, 3]], "output": [[3], [3]]}
    for split, name in (("training", "aaa"), ("evaluation", "bbb")):
        (tmp_path / "tasks" / split).mkdir(parents=True)
        pairs = (
            [pair, other] if split == "training" else [{"input": [[5]], "output": [[6, 6]]}, other]
        )
        (tmp_path / "tasks" / split / f"{name}.json").write_text(
            json.dumps({"train": pairs[:1], "test": pairs[1:]})
        )
    options = ("--dataset", tmp_path / "tasks", "--augment", 5)
    assert (
        "2 tasks in 12 variants"
        in run("build", "arc-10x10", "--out", tmp_path / "data", *options).out
    )
    report = json.loads(run("inspect", tmp_path / "data", "--json").out)
    assert (report["puzzle"], report["num_shared"], report["num_equivalent"]) == ("arc-10x10", 0, 6)
    assert "train 0, aaa" in run("show", tmp_path / "data", "--split", "train", "--count", 2).out


def test_labels_that_are_no_grid_and_test_questions_in_train_are_faults_of_arc(
    tmp_path: Path,
) -> None:
    arc = registry.get("arc-10x10")
    rows = np.stack([arc.encode(np.full((2, 3), value, dtype=np.int8)) for value in range(3)])
    write_split(tmp_path, "test", rows, rows, puzzle=arc)
    broken = rows.copy()
    broken[2, 0] = 0
    write_split(tmp_path, "train", rows[1:], broken[1:], puzzle=arc)
    assert inspect(tmp_path).faults == [
        "1 labels of train are wrong, the first at index 1.",
        "2 test questions are in train under the same puzzle id.",
    ]


def test_sizes_that_several_puzzles_share_ask_for_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    sudoku = registry.get("sudoku-4x4")
    twin = type(sudoku)(name="twin", box_rows=2, box_cols=2)  # type: ignore[call-arg]
    monkeypatch.setitem(registry._BUILT_IN, "twin", twin)
    run("build", "twin", "--out", tmp_path / "data", "--train", 1, "--test", 1)
    meta = open_split(tmp_path / "data", "train").meta
    assert puzzle_at(tmp_path / "data", meta).name == "twin"
    (tmp_path / "data" / "recipe.json").unlink()
    with pytest.raises(
        DatasetError, match="sudoku-4x4 or twin, which all have vocabulary 6 and length 16; choose"
    ):
        puzzle_at(tmp_path / "data", meta)


def test_import_tells_what_it_left_out_and_ends_with_1(tmp_path: Path, run: Run) -> None:
    question, answer = ROWS[0].split(",")[1:3]
    (tmp_path / "x.ndjson").write_text(
        json.dumps({"puzzle": question, "solution": answer}) + "\nnonsense\n"
    )
    asked = ("import", tmp_path / "x.ndjson", "sudoku-4x4", "--split", "train")
    said = run(*asked, "--out", tmp_path / "data", code=1)
    assert "1 training and 0 test examples" in said.out
    assert "line 2: the value is not an object" in said.err
    run(*asked[:-1], "half", "--out", tmp_path / "other", code=2)


def test_command_builds_inspects_and_shows(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "data"
    build_it = ("build", "sudoku-4x4", "--out", out, "--train", 9, "--test", 4, "--json")
    assert json.loads(run(*build_it).out)["num_train"] == 9
    report = json.loads(run("inspect", out, "--json").out)
    assert (report["puzzle"], report["faults"], report["num_shared"]) == ("sudoku-4x4", [], 0)
    assert "------+------" in run("show", out, "--split", "train", "--index", "8").out
    assert "exists already" in run(*build_it, code=2).err
    run("show", out, "--index", "4", code=2)
    for name in ("inspect", "show"):
        said = run(name, out, "--puzzle", "sudoku", code=2).err
        assert "has vocabulary 6 and length 16, but sudoku has others" in said


def test_inspect_command_ends_with_1_on_a_fault(tmp_path: Path, run: Run) -> None:
    tokens_NT = np.full((2, 16), 2)
    write_split(tmp_path, "train", tokens_NT, tokens_NT, puzzle=registry.get("sudoku-4x4"))
    assert (
        "FAULT: 2 labels of train are wrong, the first at index 0."
        in run("inspect", tmp_path, code=1).out
    )
