"""The commands of docs/own-puzzle.md run as printed, with shorter trainings and without pip."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from csv_shapes import csv_of
from service_tools import PATIENCE_S, Server, command

from hrm_puzzles import registry

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-puzzle.md").read_text(encoding="utf-8")
PUZZLE, DATA = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SHORT = {"total_samples=24000": "total_samples=1600", "total_samples=40000": "total_samples=160"}


def run(block: str, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run the commands of ours that end, and return what each printed."""
    printed: dict[str, str] = {}
    for line in block.splitlines():
        words = [SHORT.get(word, word) for word in shlex.split(line, comments=True)]
        program = words[0].removeprefix("hrm-")
        if program in ("pip", "serve", "curl"):
            continue
        done = subprocess.run(
            command(program, *words[1:]),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_S,
        )
        is_unsolved = program == "solve" and done.returncode == 1  # after so short a training
        assert done.returncode == 0 or is_unsolved, f"{line}\n{done.stdout}{done.stderr}"
        printed[program] = printed.get(program, "") + done.stdout
    return printed


@pytest.mark.timeout(1800)
def test_a_puzzle_of_ones_own_is_checked_trained_exported_and_served(tmp_path: Path) -> None:
    info = tmp_path / "latin_squares-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: latin-squares\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hrm_edge.puzzles]\nlatin-5x5 = latin:LatinSquare\n")
    own = [str(tmp_path), str(ROOT / "docs" / "own-puzzle"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
    printed = run(PUZZLE, tmp_path, environment)
    assert "kept" in printed["data"]
    assert "BROKEN" not in printed["data"]
    assert (tmp_path / "latin.bundle" / "manifest.json").is_file()


@pytest.mark.timeout(1800)
def test_a_shipped_model_is_trained_on_and_put_on_a_running_server(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(ROOT / "model")
    rows = csv_of(registry.get("sudoku"), "quizzes,solutions", "{zeros},{a}")
    (tmp_path / "mine.csv").write_text(rows)
    printed = run(DATA, tmp_path, dict(os.environ))
    assert "mine" in printed["eval"]
    arguments = shlex.split(re.findall(r"^hrm-serve (.*)#", DATA, re.MULTILINE)[0])
    made = subprocess.run(
        command("key", "add", "me", "--admin"), cwd=tmp_path, capture_output=True, text=True
    )
    key = made.stdout.split()[-1]
    served = [str(tmp_path / word) if word in ("served", "keys") else word for word in arguments]
    with Server(command("serve", *served, "--threads=1"), headers={"x-api-key": key}) as server:
        server.wait_until_ready()
        put = server.http.put("/models/mine", json={"bundle": "mine"})
        assert put.status_code == 201, put.text
        answer = server.solve(rows.splitlines()[1].split(",")[0], model="mine").json()
        assert answer["model"] == "mine"
