"""A command whose standard error, input or output is closed works as it does otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from echo_bundle import write_echo_bundle
from odd_server import SOLVED
from service_tools import command

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


def with_closed(arguments: list[str], *streams: str) -> list[str]:
    """A shell that closes these streams and becomes the command."""
    closing = " ".join(CLOSED[stream] for stream in streams)
    return ["sh", "-c", f'exec "$@" {closing}', "sh", *arguments]


def run(arguments: list[str], *streams: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(with_closed(arguments, *streams), capture_output=True, text=True)


@pytest.mark.parametrize("streams", [("stderr",), ("stdout",), ("stdin",), tuple(CLOSED)])
def test_no_file_replaces_a_closed_stream(streams: tuple[str, ...], tmp_path: Path) -> None:
    done = run([sys.executable, "-c", NUMBERS, str(tmp_path / "file")], *streams)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "file").read_text() == "3 [True, True, True]"


def test_solving_with_a_closed_standard_error_prints_answers_alone(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "echo.bundle")
    many = tmp_path / "many.txt"
    many.write_text(f"{SOLVED}\n{SOLVED}\n")
    solving = ("solve", many, "--bundle", bundle)
    done = run(command(*solving), "stderr")
    assert (done.returncode, done.stdout) == (0, f"{SOLVED}\n{SOLVED}\n")
    done = run(command(*solving, "--out", tmp_path / "out"), "stderr")
    assert (done.returncode, done.stdout) == (0, "")
    lines = (tmp_path / "out").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2]
    done = run(command("train", "--puzzle", "chess"), "stderr")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("place", ["/dev/full", "a pipe that nobody reads"])
def test_a_standard_error_that_takes_nothing_changes_no_status(place: str, tmp_path: Path) -> None:
    if place == "/dev/full":
        target = os.open(place, os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    done = subprocess.run(
        command("data", "inspect", tmp_path), stdout=subprocess.PIPE, stderr=target
    )
    os.close(target)
    assert (done.returncode, done.stdout) == (2, b"")


def test_an_empty_standard_input_is_one_that_is_closed() -> None:
    done = run(command("solve", "-", "--bundle", "sudoku-6x6"), "stdin")
    assert done.returncode == 2
    assert done.stderr == "hrm-solve: '-' holds no puzzle: write one per line.\n"
