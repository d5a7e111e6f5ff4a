"""A bare machine: on Python 3.10 (JetPack 6), the wheel of `make dist` serves and solves."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tools import ran
from files import ROOT
from service_tools import Server

from hrm_puzzles.sudoku.sudoku import WELL_KNOWN

pytestmark = pytest.mark.process
CONSTRAINTS = ROOT / "constraints.txt"
DEV = Path(sys.executable).parent
DESKTOP = {"torch", "safetensors", "onnx", "tensorboard"}
PYENV = ".pyenv/versions/3.10.*/bin/python"


def python_310() -> str | None:
    """Return a working interpreter; a version manager's shim may exist without one."""
    installed = map(str, Path.home().glob(PYENV))
    for name in ("python3.10", *installed):
        path = shutil.which(name)
        if path is not None and works(path):
            return path
    return None


def works(python: str) -> bool:
    ended = subprocess.run([python, "--version"], capture_output=True)
    return ended.returncode == 0


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = python_310() or sys.executable
    folder = tmp_path_factory.mktemp("bare")
    # as `make dist` in a checkout whose environment is this one
    ran("make", "--assume-old=.venv/ready", "dist", f"DEV={DEV}", f"DIST={folder}", cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    assert archive.stat().st_size > wheel.stat().st_size  # it holds the tests too
    commands = folder / "env" / "bin"
    ran(python, "-m", "venv", "--without-pip", folder / "env")
    options = ["--quiet", "--constraints", CONSTRAINTS, f"{wheel}[serve]"]
    ran(*pip_for(commands, "install"), *options)
    return commands


def pip_for(commands: Path, action: str) -> list[str | Path]:
    """Return our own installer's command for that environment."""
    return [DEV / "uv", "pip", action, "--python", commands / "python"]


def test_the_wheel_with_the_serving_extra_solves_over_http_on_python_310(bare: Path):
    with Server([str(bare / "hrm-serve"), "sudoku"]) as server:
        server.wait_until_ready()
        answer = server.solve(WELL_KNOWN).json()
        assert "<title>HRM Edge" in server.http.get("/").text
    assert answer["status"] == "proven"
    assert answer["verified"] is True
    assert len(answer["solution"]) == 81


def test_its_demo_draws_a_board_of_each_kind_and_names_three_next_steps(bare: Path, tmp_path: Path):
    ended = ran(bare / "hrm", "demo", cwd=tmp_path)
    assert ended.stderr == ""
    assert ended.stdout.count("proven to keep every rule") == 3
    _, _, next_steps = ended.stdout.partition("Next:\n")
    assert len(next_steps.splitlines()) == 3


def test_no_package_of_the_desktop_is_installed_there(bare: Path):
    listed = ran(*pip_for(bare, "list"), "--format=freeze")
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert "onnxruntime" in names  # the list is a real one
    assert names.isdisjoint(DESKTOP)


def test_the_doctor_finds_nothing_to_fix_there_and_leaves_training_alone(bare: Path):
    findings = json.loads(ran(bare / "hrm-doctor", "--json").stdout)
    failed = [finding for finding in findings if finding["level"] == "fail"]
    assert failed == []
    of_training = {finding["name"] for finding in findings if finding["part"] == "train"}
    assert of_training == {"training"}
