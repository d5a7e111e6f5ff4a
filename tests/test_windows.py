"""Data set to served answer where our packages lack what Windows lacks (tests/support/windows says what that is).

Not run on Windows itself: paths, processes, Ctrl-C and the libraries are this machine's.
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
from service_tools import PATIENCE_S, free_port, wait_for

from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import DataRecipe, build

pytestmark = pytest.mark.process

EMULATION = Path(__file__).parent / "support" / "windows"
PROGRAMS = {
    "data": "hrm_puzzles.cli:main",
    "train": "hrm_train.cli:main",
    "export": "hrm_export.cli:main",
    "solve": "hrm_edge_runtime.solve.cli:main",
    "key": "hrm_edge_runtime.key_cli:main",
    "serve": "hrm_edge_runtime.cli:serve",
    "doctor": "hrm_host.doctor.cli:main",
}
OPEN = "1...4..3.1..3.2."
TINY = (
    "hidden_size=32",
    "puzzle_vector_size=32",
    "max_segments=4",
    "batch_size=8",
    "total_samples=9600",
    "compile=false",
)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drive")


def begin(drive: Path, code: str, *arguments: object) -> "subprocess.Popen[bytes]":
    """A Python process without what Windows lacks, in the folder `drive`; its output is read as bytes."""
    path = os.pathsep.join([str(EMULATION), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": path, "PYTHONIOENCODING": "cp1252", "HRM_WINDOWS_DRIVE": str(drive)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=drive,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def begin_command(drive: Path, name: str, *arguments: object) -> "subprocess.Popen[bytes]":
    module, _, function = PROGRAMS[name].partition(":")
    return begin(drive, f"from {module} import {function} as main; main()", *arguments)


def said(process: "subprocess.Popen[bytes]", status: int = 0) -> tuple[str, str]:
    """What a process wrote, as UTF-8, once it has ended with that status and without a traceback."""
    out, errors = (stream.decode() for stream in process.communicate(timeout=4 * PATIENCE_S))
    assert process.returncode == status, errors
    assert "Traceback" not in errors, errors
    return out, errors


@pytest.fixture(scope="module")
def data(drive: Path) -> Path:
    sizes = ("--train", 64, "--test", 16, "--workers", 100)
    said(begin_command(drive, "data", "build", "sudoku-4x4", "--out", "data", *sizes))
    return drive / "data"


@pytest.fixture(scope="module")
def next_command(drive: Path, data: Path) -> list[str]:
    """What training names in its last line; it was stopped by Ctrl-C after its first checkpoint, and resumed."""
    run, often = drive / "run", ("--checkpoint-steps", 20, "--validate-steps", 100, "--keep", 1)
    settings = ["--preset", "small", *(part for setting in (*TINY, "compile=false") for part in ("--set", setting))]
    start = begin_command(
        drive, "train", "--puzzle", "sudoku-4x4", "--data", data.name, "--run", "run", "--hw", "cpu", *often, *settings
    )
    while not (run / "latest").exists():
        assert start.poll() is None, said(start)
        time.sleep(0.01)
    start.send_signal(signal.SIGINT)
    assert "--resume" in said(start, status=130)[1]
    last_line = said(begin_command(drive, "train", "--run", "run", "--resume", *often))[1].splitlines()[-1]
    assert last_line.startswith("next: hrm-export ")
    return shlex.split(last_line)[2:]


@pytest.fixture(scope="module")
def bundle(drive: Path, next_command: list[str]) -> Path:
    sizes = ("--held-out", 16, "--golden", 2, "--max-loss", 100)
    said(begin_command(drive, "export", *next_command, "--out", "small.bundle", *sizes))
    return drive / "small.bundle"


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "import resource",
        "import os; os.fork()",
        "import os; os.fsync(os.open('there', os.O_RDONLY))",
        "import signal; signal.SIGHUP",
        "import uvloop",
        "from pathlib import Path; Path('/proc/self/status').read_text()",
        "from pathlib import Path; Path('there').write_text('│')",
        "import os; kept = open('there'); os.replace('there', 'elsewhere')",
    ],
)
def test_what_windows_lacks_is_missing_in_our_packages(line: str, drive: Path) -> None:
    (drive / "there").touch()
    left = begin(drive, f"exec({line!r}, {{'__name__': 'hrm_probe'}})")
    left.communicate(timeout=PATIENCE_S)
    assert left.returncode == 1


def test_a_data_set_built_there_has_the_same_bytes(data: Path, tmp_path: Path) -> None:
    recipe = DataRecipe(puzzle="sudoku-4x4", num_train=64, num_test=16)
    assert build(recipe, tmp_path / "here").fingerprint == datasets.fingerprint(data)


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


def test_a_file_that_another_reads_for_a_moment_is_replaced_all_the_same(drive: Path) -> None:
    said(begin(drive, HELD))
    assert (drive / "held").read_text() == "new"


def test_boards_reach_a_pipe_whole(drive: Path) -> None:
    """The shades of a maze are in no code page of Windows."""
    said(begin_command(drive, "data", "build", "maze-8x8", "--out", "mazes", "--train", 4, "--test", 4))
    shown = said(begin_command(drive, "data", "show", "mazes"))[0]
    assert "█" in shown


def test_a_run_that_was_stopped_there_ends_with_one_checkpoint_of_its_last_step(
    drive: Path, next_command: list[str]
) -> None:
    run = drive / next_command[0].removesuffix("/best")
    kept = {(run / pointer).read_text().strip() for pointer in ("latest", "best")}
    assert {path.name for path in run.glob("step_*")} == kept
    assert (run / "latest").read_text() == "step_300\n"
    assert list(run.glob(".*")) == []


def test_answers_are_continued_in_their_file(drive: Path, bundle: Path) -> None:
    (drive / "puzzles.txt").write_text(f"{OPEN}\n.234341221434321\n")
    solving = ("solve", "puzzles.txt", "--bundle", bundle.name, "--out", "answers.ndjson")
    for _ in range(2):
        process = begin_command(drive, *solving)
        process.wait(4 * PATIENCE_S)
        said(process, status=process.returncode if process.returncode == 1 else 0)  # so small a model may not solve it
    lines = (drive / "answers.ndjson").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["number"] for line in lines] == [1, 2]
    assert not any(line.endswith(b"\r\n") for line in lines)


def test_a_server_with_keys_answers_and_ctrl_c_ends_it(drive: Path, bundle: Path) -> None:
    for label in ("kitchen", "hall"):
        key = said(begin_command(drive, "key", "add", label, "--file", "keys"))[0].strip()
    port = free_port()
    server = begin_command(drive, "serve", bundle.name, "--port", port, "--keys", "keys", "--slots", 2)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"x-api-key": key}, timeout=PATIENCE_S) as client:

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


def test_the_doctor_says_what_it_finds_there(drive: Path) -> None:
    found = json.loads(said(begin_command(drive, "doctor", "--json"))[0])
    assert {"serve", "train"} <= {finding["part"] for finding in found}
