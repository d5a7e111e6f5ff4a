"""The bare machine: Python 3.10 (JetPack 6), the wheel with the serving extra alone; the server must run and solve."""

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


def python_310() -> str | None:
    """A working interpreter of that version (a version manager's shim may exist without one)."""
    for name in ("python3.10", *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python"))):
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    return None


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh Python 3.10 environment that holds the built wheel and nothing of the desktop side."""
    python = python_310()
    if python is None:
        pytest.skip("no Python 3.10 on this machine")
    folder = tmp_path_factory.mktemp("bare")
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    commands = folder / "env" / "bin"
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "env"], check=True)
    install = ["install", "-q", "--no-compile", f"{ROOT}[serve]"]  # most of what it would compile is never imported
    subprocess.run([*pip_for(commands), *install], check=True, env=environment)
    return commands


def pip_for(commands: Path) -> list[str | Path]:
    """Our own pip at work on that environment: installing one there would take longer than what it is for."""
    return [sys.executable, "-m", "pip", "--python", commands / "python"]


def test_the_wheel_with_the_serving_extra_solves_over_http_on_python_310(bare: Path) -> None:
    with Server([str(bare / "hrm-serve"), "sudoku"]) as server:
        server.wait_until_ready()
        answer = server.solve(WELL_KNOWN).json()
    assert (answer["status"], answer["verified"], len(answer["solution"])) == ("proven", True, 81)


def test_its_demo_draws_a_board_of_each_kind_and_names_three_next_steps(bare: Path) -> None:
    ended = subprocess.run([bare / "hrm", "demo"], capture_output=True, text=True, timeout=180)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("proven right") == 3
    assert len(ended.stdout.partition("Next:\n")[2].splitlines()) == 3


def test_nothing_of_the_desktop_side_is_installed_there(bare: Path) -> None:
    listed = subprocess.run([*pip_for(bare), "list", "--format=freeze"], capture_output=True, text=True)
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert "onnxruntime" in names  # the list is a real one
    assert not names & {"torch", "safetensors", "onnx", "tensorboard", "matplotlib"}


def test_the_doctor_finds_nothing_to_mend_there_and_leaves_training_alone(bare: Path) -> None:
    ended = subprocess.run([bare / "hrm-doctor", "--json"], capture_output=True, text=True, timeout=120)
    found = json.loads(ended.stdout)
    assert ended.returncode == 0, [finding for finding in found if finding["level"] == "fail"]
    assert {finding["name"] for finding in found if finding["part"] == "train"} == {"training"}
