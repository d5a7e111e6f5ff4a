"""A run whose files are cut, empty or of another kind is not resumed, and one sentence says so."""

import itertools
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from cli_tools import invoked, json_of, rejected, succeeded
from files import edited
from train_tools import fresh, latest

from hrm_train.cli import main as app
from hrm_train.status import read_lines

NO_VALUES = '{"recipe": 3, "progress": [], "sha256": 3}'
NO_CHECKPOINT = "does not name a checkpoint of the run"


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    succeeded(app, "--run", run, *fresh(data, 2), "--checkpoint-steps", "1")
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def other(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "other")


assert_resumes = partial(succeeded, app, "--resume", "--run")
rejection = partial(rejected, app, "--resume", "--run")
status_of = partial(json_of, app, "status")


def damage(file: Path, content: str) -> None:
    if content == "cut":
        before = file.read_bytes()
        file.write_bytes(before[: len(before) // 2])
    elif content == "pipe":
        file.unlink()
        os.mkfifo(file)
    else:
        file.write_text(content)


def torn_copy(run: Path) -> None:
    torn = shutil.copytree(run / "step_2", run / "step_3")
    (torn / "trainer.safetensors").write_bytes(b"")


def forget_hashes(saved: Path) -> None:
    with edited(saved / "meta.json") as meta:
        del meta["sha256"]


OF_JSON = ("config.json", "meta.json", "trainer.json")
DAMAGED = [("model.safetensors", "cut"), ("model.safetensors", "pipe")]
DAMAGED += [("trainer.safetensors", ""), ("trainer.safetensors", "pipe")]
DAMAGED += itertools.product(OF_JSON, ("cut", "null", NO_VALUES))


@pytest.mark.parametrize("knows_hashes", [True, False], ids=["hashed", "of an older version"])
@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_damaged_file_is_rejected(name: str, content: str, knows_hashes: bool, run: Path):
    saved = latest(run)
    if not knows_hashes:
        forget_hashes(saved)
    damage(saved / name, content)
    assert saved.name in rejection(run)


def test_a_damaged_plan_is_rejected(run: Path):
    for content in ("cut", "", "[]", '{"hardware": {}, "model": {}}'):
        damage(run / "run.json", content)
        assert "run.json" in rejection(run)


ABSENT = object()
EDITED = [
    ("intervals", "validate_steps", 0),
    ("hardware", "device", "tpu"),
    ("recipe", "lr", "0.1"),
    ("recipe", "average_decay", float("nan")),
    ("recipe", "total_samples", ABSENT),
    ("model", "random_start", None),
    ("model", "board", 5),
]


@pytest.mark.parametrize(("record", "name", "value"), EDITED)
def test_a_setting_that_no_option_accepts_is_rejected_by_name(
    record: str, name: str, value: object, run: Path
):
    with edited(run / "run.json") as values:
        values[record][name] = value
        if value is ABSENT:
            del values[record][name]
    before = (run / "run.json").read_bytes()
    assert name in rejection(run)
    assert (run / "run.json").read_bytes() == before


@pytest.mark.parametrize(("path", "value"), [("events", [5]), ("recipe", {"total_samples": 0})])
def test_a_plan_that_status_cannot_show_is_rejected(path: str, value: object, run: Path):
    with edited(run / "run.json") as values:
        values[path] = value
    assert "run.json" in rejected(app, "status", run)


@pytest.mark.parametrize(
    ("name", "reason"), [("latest", "latest cannot be read"), ("step_2", NO_CHECKPOINT)]
)
def test_a_link_out_of_the_run_is_rejected(name: str, reason: str, run: Path, other: Path):
    (run / name).rename(run / "old")
    (run / name).symlink_to(other / "step_2", target_is_directory=True)
    assert reason in rejection(run)


OUTSIDE = ["../other/step_2", "OTHER/step_2", "..", ".", "step_2/..", "lock", "step_2\nstep_1"]
BROKEN = ["", "\0", "step_99\n", "step_3\n", "x" * 1000]


@pytest.mark.parametrize("content", [*OUTSIDE, *BROKEN])
def test_a_pointer_to_no_checkpoint_of_the_run_is_rejected_with_the_one_to_name(
    content: str, run: Path, other: Path
):
    """`step_3` is torn, and `step_2` whole."""
    torn_copy(run)
    (run / "latest").write_text(content.replace("OTHER", str(other)))
    assert f"write step_2 into {run}/latest" in rejection(run)
    (run / "latest").write_text("step_2\n")
    assert_resumes(run)


def test_without_a_pointer_the_last_whole_checkpoint_is_continued(whole: Path, run: Path):
    """As after a kill between the first checkpoint and its pointer."""
    torn_copy(run)
    (run / "latest").unlink()
    assert_resumes(run)
    assert latest(run) is None
    num_lines = len(read_lines(whole / "metrics.ndjson"))
    assert len(read_lines(run / "metrics.ndjson")) == num_lines
    for path in run.glob("step_*"):
        (path / "meta.json").write_text("")
    assert "no whole checkpoint" in rejection(run)


def test_directories_that_are_no_checkpoints_of_the_run_are_passed_over(run: Path):
    for name in ("step_abc", "step_", "step_-1", "step_²", "step_7", "step_3.old"):
        (run / name).mkdir()
    (run / "step_9").write_text("a file")
    (run / "step_2" / "model.safetensors").write_bytes(b"")
    assert "step_1 is whole" in rejection(run)
    assert status_of(run)["checkpoints"] == ["step_1", "step_2", "step_7"]


STRAY = ["5", "null", "[]", "{}", '{"step": "x", "kind": 3}', '{"step": 1, "kind": "whole"}']
TORN = '{"time": 2000.0, "st'


@pytest.mark.parametrize("line", [*STRAY, TORN, "[" * 10_000])
def test_stray_lines_of_the_records_are_passed_over(line: str, whole: Path, run: Path):
    for name in ("validation.ndjson", "metrics.ndjson"):
        lines = (run / name).read_text().splitlines()
        (run / name).write_text("\n".join([line, *lines, line]) + "\n")
    before = status_of(whole)
    now = status_of(run)
    for moving in ("run", "age_s"):
        del before[moving], now[moving]
    assert now == before
    succeeded(app, "status", run)
    (run / "latest").write_text("step_1\n")
    assert_resumes(run)


def test_a_new_run_that_is_refused_may_start_again(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    torn = shutil.copytree(data, tmp_path / "torn")
    shutil.rmtree(torn / "test")
    for refused in (fresh(torn, 2), [*fresh(data, 2), f"--init={tmp_path / 'absent'}"]):
        assert invoked(app, "--run", run, *refused).exit_code == 2
    assert not (run / "run.json").exists()
    succeeded(app, "--run", run, *fresh(data, 2))


def test_a_test_split_with_other_puzzle_ids_is_rejected(data: Path, tmp_path: Path):
    other = shutil.copytree(data, tmp_path / "other")
    with edited(other / "test" / "dataset.json") as values:
        values["num_puzzle_identifiers"] = 5
    ended = invoked(app, "--run", tmp_path / "run", *fresh(other, 1))
    assert ended.exit_code == 2
    assert f"{other} has 5 puzzle ids in test, but 1 in train" in ended.stderr
