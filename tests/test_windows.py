"""From data set to served answer without what Windows lacks (see tests/windows).

Paths, processes, Ctrl-C and the libraries are those of this machine, not of Windows.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from files import lines_in
from service_tools import HRM, PATIENCE_S, free_port, wait_for

from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import DataRecipe, build

pytestmark = pytest.mark.process
EMULATION = Path(__file__).parent / "windows"
OPEN = "1...4..3.1..3.2."
TINY = (
    "--set=hidden_size=32",
    "--set=puzzle_vector_size=32",
    "--set=max_segments=4",
    "--set=batch_size=8",
    "--set=total_samples=1920",
    "--set=compile=false",
)
OFTEN = ("--checkpoint-steps", 10, "--validate-steps", 20, "--keep", 1)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drive")


def begin(drive: Path, code: str, *arguments: object) -> "subprocess.Popen[bytes]":
    """Start a Python process without what Windows lacks, in the folder `drive`."""
    environment = dict(os.environ)
    folders = [str(EMULATION), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    environment["PYTHONIOENCODING"] = "cp1252"
    environment["HRM_WINDOWS_DRIVE"] = str(drive)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=drive, env=environment, stdout=pipe, stderr=pipe)


def begin_command(drive: Path, name: str, *arguments: object) -> "subprocess.Popen[bytes]":
    return begin(drive, HRM, name, *arguments)


def said(process: "subprocess.Popen[bytes]", status: int = 0) -> tuple[str, str]:
    """Wait for the end of a process with that status, and return its output as UTF-8."""
    out, errors = process.communicate(timeout=4 * PATIENCE_S)
    assert process.returncode == status, errors.decode()
    assert b"Traceback" not in errors, errors.decode()
    return out.decode(), errors.decode()


@pytest.fixture(scope="module")
def data(drive: Path) -> Path:
    sizes = ("--train", 64, "--test", 16, "--workers", 100)
    process = begin_command(drive, "data", "build", "sudoku-4x4", "--out", "data", *sizes)
    said(process)
    return drive / "data"


@pytest.fixture(scope="module")
def next_command(drive: Path, data: Path) -> list[str]:
    """Return the arguments of the export that training names in its last line.

    Ctrl-C stops the training after its first checkpoint, and then it resumes.
    """
    run = ("--run", "run")
    what = ("--puzzle", "sudoku-4x4", "--data", data.name, "--hw", "cpu", "--preset", "small")
    start = begin_command(drive, "train", *run, *what, *OFTEN, *TINY)
    while not (drive / "run" / "latest").exists():
        assert start.poll() is None, said(start)
        time.sleep(0.01)
    start.send_signal(signal.SIGINT)
    _, stopped = said(start, status=130)
    assert "--resume" in stopped
    _, resumed = said(begin_command(drive, "train", *run, "--resume", *OFTEN))
    last_line = resumed.splitlines()[-1]
    told, called, *arguments = shlex.split(last_line)
    assert (told, Path(called).stem) == ("next:", "hrm-export")
    return arguments


@pytest.fixture(scope="module")
def bundle(drive: Path, next_command: list[str]) -> Path:
    sizes = ("--held-out", 16, "--golden", 2, "--max-loss", 100)
    process = begin_command(drive, "export", *next_command, "--out", "small.bundle", *sizes)
    said(process)
    return drive / "small.bundle"


def test_a_data_set_built_there_has_the_same_bytes(data: Path, tmp_path: Path):
    recipe = DataRecipe(puzzle="sudoku-4x4", num_train=64, num_test=16)
    here = build(recipe, tmp_path / "here")
    assert here.fingerprint == datasets.fingerprint(data)


HELD = """
import threading
from pathlib import Path
from hrm_host import atomic

file = Path("held")
atomic.write_text(file, "old")
reader = file.open()
threading.Timer(0.2, reader.close).start()
atomic.write_text(file, "new")
"""


def test_a_file_that_another_reads_for_a_moment_is_still_replaced(drive: Path):
    said(begin(drive, HELD))
    assert (drive / "held").read_text() == "new"


def test_boards_reach_a_pipe_whole(drive: Path):
    """No code page of Windows has the shades of a maze."""
    sizes = ("--train", 4, "--test", 4)
    said(begin_command(drive, "data", "build", "maze-8x8", "--out", "mazes", *sizes))
    shown, _ = said(begin_command(drive, "data", "inspect", "mazes"))
    assert "█" in shown


def test_a_stopped_run_has_one_last_checkpoint(drive: Path, next_command: list[str]):
    run = drive / next_command[0].removesuffix("/best")
    latest = (run / "latest").read_text()
    best = (run / "best").read_text()
    kept = {path.name for path in run.glob("step_*")}
    assert latest == "step_60\n"
    assert kept == {latest.strip(), best.strip()}
    assert list(run.glob(".*")) == []


def test_answers_are_continued_in_their_file(drive: Path, bundle: Path):
    (drive / "puzzles.txt").write_text(f"{OPEN}\n.234341221434321\n")
    solving = ("solve", "puzzles.txt", "--bundle", bundle.name, "--out", "answers.ndjson")
    for _ in range(2):
        process = begin_command(drive, *solving)
        status = process.wait(4 * PATIENCE_S)
        assert status in (0, 1)  # so small a model may not solve it
        said(process, status)
    content = (drive / "answers.ndjson").read_bytes()
    numbers = [record["number"] for record in lines_in(content)]
    assert numbers == [1, 2]
    assert b"\r\n" not in content


def test_a_server_with_keys_answers_and_ctrl_c_ends_it(drive: Path, bundle: Path):
    for label in ("kitchen", "hall"):
        out, _ = said(begin_command(drive, "key", "add", label, "--file", "keys"))
    port = free_port()
    options = ("--port", port, "--keys", "keys", "--slots", 2)
    server = begin_command(drive, "serve", bundle.name, *options)
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(
        base_url=url, headers={"x-api-key": out.strip()}, timeout=PATIENCE_S
    ) as client:

        def is_ready() -> bool:
            assert server.poll() is None, said(server)
            try:
                return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(is_ready, every_s=0.05)
        assert client.post("/solve", json={"puzzle": OPEN}).status_code == 200
    server.send_signal(signal.SIGINT)
    said(server)


def test_the_doctor_says_what_it_finds_there(drive: Path):
    out, _ = said(begin_command(drive, "doctor", "--json"))
    parts = {finding["part"] for finding in json.loads(out)}
    assert {"serve", "train"} <= parts
