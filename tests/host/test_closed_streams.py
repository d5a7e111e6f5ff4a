"""A command whose standard error, input or output is closed does what it does otherwise, and says as much elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from echo_bundle import write_echo_bundle
from service_tools import PATIENCE_S, command, free_port, wait_for
from solving_tools import OPEN, SOLVED
from train_tools import fresh

pytestmark = pytest.mark.process

CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}
NUMBERS = """
import os, sys
from hrm_host.command import Command
app = Command("hrm-try")

@app.command()
def attempt(path: str) -> None:
    print("said", file=sys.stderr)
    os.write(2, b"a library's warning")
    with open(path, "w") as file:
        file.write(f"{file.fileno()} {[os.get_inheritable(number) for number in range(3)]}")

app()
"""


def run(arguments: list[str], *streams: str) -> subprocess.CompletedProcess[str]:
    """Run a command with these streams closed."""
    closing = " ".join(CLOSED[stream] for stream in streams)
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "streams", [("stderr",), ("stdout",), ("stdin",), ("stdout", "stderr"), tuple(CLOSED)]
)
def test_no_file_takes_the_place_of_a_closed_stream(
    streams: tuple[str, ...], tmp_path: Path
) -> None:
    done = run([sys.executable, "-c", NUMBERS, str(tmp_path / "file")], *streams)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "file").read_text() == "3 [True, True, True]"


def test_solving_with_a_closed_standard_error_prints_answers_alone(tmp_path: Path) -> None:
    bundle, many = write_echo_bundle(tmp_path / "echo.bundle"), tmp_path / "many.txt"
    many.write_text(f"{SOLVED}\n{SOLVED}\n")
    done = run(command("solve", many, "--bundle", bundle), "stderr")
    assert (done.returncode, done.stdout) == (0, f"{SOLVED}\n{SOLVED}\n")
    done = run(command("solve", many, "--bundle", bundle, "--out", tmp_path / "out"), "stderr")
    assert (done.returncode, done.stdout) == (0, "")
    assert [json.loads(line)["number"] for line in (tmp_path / "out").read_text().splitlines()] == [
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("solve", OPEN, "--bundle", "nothing"), 2),
        (("solve", OPEN, "--patience", 0, "--url", "http://127.0.0.1:1"), 3),
        (("solve", "--nonsense"), 2),
        (("data", "show", "nowhere"), 2),
        (("data", "build"), 2),
        (("serve", "nothing"), 2),
        (("train", "--puzzle", "chess"), 2),
        (("train", "status", "nowhere"), 2),
    ],
)
def test_a_refusal_keeps_its_status_though_nobody_hears_it(
    arguments: tuple[object, ...], status: int
) -> None:
    done = run(command(str(arguments[0]), *arguments[1:]), "stderr")
    assert (done.returncode, done.stdout) == (status, "")


@pytest.mark.parametrize("place", ["/dev/full", "a pipe that nobody reads"])
def test_a_standard_error_that_takes_nothing_changes_no_status(place: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    target = os.open(place, os.O_WRONLY) if place.startswith("/") else writer
    done = subprocess.run(command("data", "show", tmp_path), stdout=subprocess.PIPE, stderr=target)
    assert (done.returncode, done.stdout) == (2, b"")
    for handle in {writer, target}:
        os.close(handle)


def test_an_empty_standard_input_is_one_that_is_closed() -> None:
    done = run(command("solve", "-", "--bundle", "sudoku-6x6"), "stdin")
    assert (done.returncode, done.stderr) == (
        2,
        "hrm-solve: '-' holds no puzzle: write one per line.\n",
    )


def test_a_data_set_is_built_and_a_model_trained(tmp_path: Path) -> None:
    options = ["build", "sudoku-4x4", "--out", tmp_path / "data", "--train", 16, "--test", 8]
    assert run(command("data", *options), "stderr").returncode == 0
    done = run(
        [*command("train", "--run", tmp_path / "run"), *fresh(tmp_path / "data", 2)], *CLOSED
    )
    assert (done.returncode, done.stdout, (tmp_path / "run" / "latest").read_text()) == (
        0,
        "",
        "step_2\n",
    )


def test_a_server_serves(tmp_path: Path) -> None:
    bundle, port = write_echo_bundle(tmp_path / "echo.bundle"), free_port()
    asked = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command("serve", bundle, "--port", port)]
    with subprocess.Popen(asked) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _status(f"{url}/readyz") == 200)
            assert httpx.post(f"{url}/solve", json={"puzzle": SOLVED}).json()["solution"] == SOLVED
        finally:
            server.terminate()
        assert server.wait(PATIENCE_S) == 0


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0
