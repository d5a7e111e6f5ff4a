"""A bare machine: on Python 3.10 (JetPack 6), the wheel with the serving extra runs and solves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from service_tools import Server

from hrm_puzzles.sudoku.sudoku import WELL_KNOWN

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
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
    python = python_310()
    if python is None:
        pytest.skip("no Python 3.10 on this machine")
    folder = tmp_path_factory.mktemp("bare")
    environment = dict(os.environ)
    environment["PIP_CONSTRAINT"] = str(CONSTRAINTS)
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    environment.pop("PYTHONPATH", None)
    commands = folder / "env" / "bin"
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "env"], check=True)
    # Without compiling, because most modules are never imported.
    install = ["install", "-q", "--no-compile", f"{ROOT}[serve]"]
    subprocess.run([*pip_for(commands), *install], check=True, env=environment)
    return commands


def pip_for(commands: Path) -> list[str | Path]:
    """Return our own pip for that environment, because installing one there takes longer."""
    return [sys.executable, "-m", "pip", "--python", commands / "python"]


def test_the_wheel_with_the_serving_extra_solves_over_http_on_python_310(bare: Path) -> None:
    with Server([str(bare / "hrm-serve"), "sudoku"]) as server:
        server.wait_until_ready()
        answer = server.solve(WELL_KNOWN).json()
    assert answer["status"] == "proven"
    assert answer["verified"] is True
    assert len(answer["solution"]) == 81


def test_its_demo_draws_a_board_of_each_kind_and_names_three_next_steps(bare: Path) -> None:
    ended = subprocess.run([bare / "hrm", "demo"], capture_output=True, text=True, timeout=180)
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert ended.stdout.count("proven to keep every rule") == 3
    _, _, next_steps = ended.stdout.partition("Next:\n")
    assert len(next_steps.splitlines()) == 3


def test_no_package_of_the_desktop_is_installed_there(bare: Path) -> None:
    command = [*pip_for(bare), "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True)
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert "onnxruntime" in names  # the list is a real one
    assert names.isdisjoint(DESKTOP)


def test_the_doctor_finds_nothing_to_fix_there_and_leaves_training_alone(bare: Path) -> None:
    command = [bare / "hrm-doctor", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    findings = json.loads(ended.stdout)
    failed = [finding for finding in findings if finding["level"] == "fail"]
    assert failed == []
    assert ended.returncode == 0
    of_training = {finding["name"] for finding in findings if finding["part"] == "train"}
    assert of_training == {"training"}
