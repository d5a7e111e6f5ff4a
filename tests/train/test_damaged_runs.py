"""A run whose files are cut, empty or of another kind is not resumed, and one sentence says so."""

import json
import shutil
from pathlib import Path

import pytest
from train_tools import fresh, latest
from typer.testing import CliRunner

from hrm_train.cli import main as app
from hrm_train.status import read_lines

FILES = ("config.json", "meta.json", "model.safetensors", "trainer.json", "trainer.safetensors")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    trained = CliRunner().invoke(
        app, ["--run", str(run), *fresh(data, 2), "--checkpoint-steps", "1"]
    )
    assert trained.exit_code == 0, trained.output
    return run


def refused(run: Path) -> str:
    told = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert isinstance(told.exception, SystemExit), told.exception
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1), told.stderr
    return told.stderr


@pytest.mark.parametrize("knows_hashes", [True, False], ids=["hashed", "of an older version"])
@pytest.mark.parametrize(
    "content", ["cut", "empty", "[]", "null", '{"recipe": 3, "progress": [], "sha256": 3}']
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_refused(
    name: str, content: str, knows_hashes: bool, whole: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    saved = latest(run)
    assert saved is not None
    file = saved / name
    if not knows_hashes:
        meta = json.loads((saved / "meta.json").read_text())
        (saved / "meta.json").write_text(
            json.dumps({key: meta[key] for key in meta if key != "sha256"})
        )
    before = file.read_bytes()
    file.write_bytes(
        {"cut": before[: len(before) // 2], "empty": b""}.get(content, content.encode())
    )
    assert str(saved.name) in refused(run)


@pytest.mark.parametrize(
    "content", ["cut", "empty", "[]", '{"hardware": 3}', '{"hardware": {}, "model": {}}']
)
def test_a_damaged_plan_is_refused(content: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    before = (run / "run.json").read_text()
    (run / "run.json").write_text(
        {"cut": before[: len(before) // 2], "empty": ""}.get(content, content)
    )
    assert "run.json" in refused(run)


@pytest.mark.parametrize("content", ["", "step_99\n", "\0", "../..\n"])
def test_a_pointer_to_no_checkpoint_is_refused(content: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "latest").write_text(content)
    refused(run)


OUTSIDE = [
    "../other/step_2\n",
    "/OTHER/step_2\n",
    "..\n",
    ".\n",
    "step_2/..\n",
    "lock\n",
    "step_2\nstep_1\n",
]


@pytest.mark.parametrize("content", OUTSIDE)
def test_a_pointer_out_of_the_run_is_refused(content: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.copytree(whole, tmp_path / "other")
    (run / "latest").write_text(content.replace("/OTHER", str(tmp_path / "other")))
    assert "does not name a checkpoint of the run" in refused(run)


@pytest.mark.parametrize("name", ["latest", "step_2"])
def test_a_link_out_of_the_run_is_refused(name: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    shutil.copytree(whole, tmp_path / "other")
    taken = run / name
    shutil.rmtree(taken) if taken.is_dir() else taken.unlink()
    taken.symlink_to(tmp_path / "other" / "step_2", target_is_directory=True)
    assert "does not name a checkpoint of the run" in refused(run)


def test_a_link_within_the_run_is_followed(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "latest").unlink()
    (run / "latest").symlink_to("step_2", target_is_directory=True)
    resumed = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert resumed.exit_code == 0, resumed.output


@pytest.mark.parametrize("content", ["", "step_99\n", "step_3\n", "x" * 1000])
def test_a_broken_pointer_is_refused_with_the_checkpoint_to_name(
    content: str, whole: Path, tmp_path: Path
) -> None:
    """`step_3` is torn, and `step_2` whole."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    torn = Path(shutil.copytree(run / "step_2", run / "step_3"))
    (torn / "trainer.safetensors").write_bytes(b"")
    (run / "latest").write_text(content)
    told = refused(run)
    assert f"write step_2 into {run}/latest" in told
    (run / "latest").write_text("step_2\n")
    resumed = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert resumed.exit_code == 0, resumed.output


def test_without_a_pointer_the_last_whole_checkpoint_is_continued(
    whole: Path, tmp_path: Path
) -> None:
    """As after a kill between the first checkpoint and its pointer."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    torn = Path(shutil.copytree(run / "step_2", run / "step_3"))
    (torn / "trainer.safetensors").write_bytes(b"")
    (run / "latest").unlink()
    resumed = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert (len(read_lines(run / "metrics.ndjson")), latest(run)) == (
        len(read_lines(whole / "metrics.ndjson")),
        None,
    )
    for path in run.glob("step_*"):
        (path / "meta.json").write_text("")
    assert "no whole checkpoint" in refused(run)


def test_a_whole_checkpoint_that_nothing_names_yet_is_named_by_the_refusal(
    whole: Path, tmp_path: Path
) -> None:
    """As after a kill between a checkpoint and its pointer, and a fault of the disk in the one before."""
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "latest").write_text("step_1\n")
    (run / "step_1" / "model.safetensors").write_bytes(b"")
    assert f"write step_2 into {run}/latest" in refused(run)


def test_directories_that_are_no_checkpoints_of_the_run_are_passed_over(
    whole: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("step_abc", "step_", "step_-1", "step_²", "step_7", "step_3.old"):
        (run / name).mkdir()
    (run / "step_9").write_text("a file")
    (run / "step_2" / "model.safetensors").write_bytes(b"")
    assert "step_1 is whole" in refused(run)
    state = CliRunner().invoke(app, ["status", str(run), "--json"])
    assert json.loads(state.stdout)["checkpoints"] == ["step_1", "step_2", "step_7"]


STRAY = [
    "5",
    "null",
    "[]",
    '"x"',
    "{}",
    '{"step": 1}',
    '{"step": "x", "kind": 3}',
    '{"step": 1, "kind": "whole"}',
]


@pytest.mark.parametrize("line", [*STRAY, "[" * 10_000])
def test_stray_lines_of_the_records_are_passed_over(line: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("validation.ndjson", "metrics.ndjson"):
        lines = (run / name).read_text().splitlines()
        (run / name).write_text("\n".join([line, *lines, line]) + "\n")
    before, now = (CliRunner().invoke(app, ["status", str(one), "--json"]) for one in (whole, run))
    told, said = (json.loads(one.stdout) for one in (before, now))
    for moving in ("run", "age_s"):
        assert told.pop(moving) != said.pop(moving)
    assert said == told
    assert CliRunner().invoke(app, ["status", str(run)]).exit_code == 0
    (run / "latest").write_text("step_1\n")
    resumed = CliRunner().invoke(app, ["--run", str(run), "--resume"])
    assert resumed.exit_code == 0, resumed.output


@pytest.mark.parametrize(
    "setting",
    [
        "total_samples=inf",
        "total_samples=1e300",
        "seed=1e400",
        "batch_size=1e12",
        "window=1e9",
        "lr=x",
        "window=nan",
    ],
)
def test_a_setting_without_bounds_is_refused_before_anything_is_made(
    setting: str, data: Path, tmp_path: Path
) -> None:
    told = CliRunner().invoke(
        app, ["--run", str(tmp_path / "run"), *fresh(data, 2), "--set", setting]
    )
    assert isinstance(told.exception, SystemExit), told.exception
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1), told.stderr
    assert not (tmp_path / "run").exists()
