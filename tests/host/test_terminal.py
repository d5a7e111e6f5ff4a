"""A command prints what it has to say beside its bars, and where a stream is closed."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from echo_bundle import write_echo_bundle
from odd_server import OPEN, SOLVED
from service_tools import PATIENCE_S, command

from hrm_puzzles.data.build import DataRecipe, build

PIECE_BYTES = 65536
CLEARED = "\x1b[2K"  # takes a line away
STYLED = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # every command that rich writes
PRINTED = [f"{SOLVED}\r\n", "# not solved", "4 puzzles: 1 proven, 2 unfinished, 1 refused"]
pytestmark = pytest.mark.process


def shown(arguments: list[str], answers: Path | None = None, *, columns: int = 200) -> str:
    """What a person sees of a command; its standard output may go to a file."""
    master, slave = pty.openpty()
    out = slave if answers is None else os.open(answers, os.O_WRONLY | os.O_CREAT)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(
        arguments, stdout=out, stderr=slave, stdin=slave, env=environment
    ) as process:
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal like this
            piece = os.read(master, PIECE_BYTES)
            while piece:
                seen += piece
                piece = os.read(master, PIECE_BYTES)
        os.close(master)
        process.wait(PATIENCE_S)
    return seen.decode()


FIGURES = "830 samples/s, loss 0.512 (answers 0.402), exact 12 %, cells 81.2 %, lr 0.003, last"
STAGE = f"""
import logging
import time
from hrm_host.progress import stages_on
with stages_on() as stages:
    for done in range(1, 31):
        # as a first start does, while it draws a curve
        logging.getLogger("matplotlib.font_manager").warning("building the font cache")
        stages.show("training", 1000 * done, 60000, {FIGURES!r})
        time.sleep(0.1)
"""


def test_a_terminal_without_a_size_gets_whole_tables():
    assert "9x9" in shown(command("models"), columns=0)


def frames(seen: str) -> list[str]:
    """The lines that a terminal showed, one after the other, without colors."""
    plain = STYLED.sub("", seen)
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def assert_bars(seen: str, stage: str, total: str) -> None:
    """A stage of a command shows its bar, its count and the time left within 80 columns."""
    pattern = re.compile(rf"{stage} +[━╸╺]+ +\d+{total} [-:\d]+")
    bars = [line for line in frames(seen) if line.startswith(stage)]
    assert bars, seen
    for line in bars:
        assert pattern.match(line), line
        assert len(line) <= 80


@pytest.mark.parametrize("columns", [80, 160])
def test_bar_count_and_time_left_come_first_and_figures_are_cut_last(columns: int):
    began_s = time.monotonic()
    seen = shown([sys.executable, "-c", STAGE], columns=columns)
    most = 5 + 2 * (time.monotonic() - began_s)
    assert "font cache" not in seen
    bars = [line for line in frames(seen) if line.startswith("training")]
    assert 2 <= len(bars) <= most  # about one a second
    for line in bars:
        assert len(line) <= columns
    last = bars[-1].rstrip()
    assert re.match(r"training ━+[╸╺]?━* 30000/60000 \d:\d\d:\d\d 8", last), last
    assert last.endswith("last") == (columns == 160)
    assert last.endswith("…") == (columns < 160)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], PRINTED),
        (["--json"], ['"solution": "1234', '"status": "unfinished"', '"rule": "wrong-length"']),
        (["--out", "OUT", "--json"], ['{"puzzles": 4, "proven": 1, "halted": 0']),
    ],
)
def test_solve_prints_every_answer(options: list[str], expected: list[str], tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "echo.bundle")
    many = tmp_path / "many.txt"
    many.write_text(f"{SOLVED}\n{OPEN}\n{OPEN}\n12\n")
    places = {"OUT": str(tmp_path / "out")}
    arguments = [places.get(option, option) for option in options]
    seen = shown(command("solve", many, "--bundle", bundle, *arguments))
    for part in expected:
        assert part in seen, seen


def test_training_and_evaluating_draw_bars_and_keep_what_they_have_to_say(tmp_path: Path):
    data = tmp_path / "data"
    run = tmp_path / "run"
    answers = tmp_path / "answers.json"
    build(DataRecipe(puzzle="sudoku-4x4", num_train=16, num_test=8), data)
    training = ["train", "--puzzle", "sudoku-4x4", "--data", data, "--run", run, "--hw", "cpu"]
    for size in ("max_segments=4", "batch_size=8", "total_samples=320", "warmup_samples=32"):
        training += ["--set", size]
    seen = shown(command(*training), columns=80)
    assert_bars(seen, "training", "/320")
    after_bars = seen.split(CLEARED)[-1]
    last_line = STYLED.sub("", after_bars).rstrip().splitlines()[-1]
    assert re.match(rf"next: \S*hrm-export {run}/best", last_line), seen
    seen = shown(command("eval", run, "--data", data, "--json"), answers, columns=80)
    assert_bars(seen, "puzzles", "/8")
    assert json.loads(answers.read_text())["fixed"]


def test_a_terminal_without_utf_8_shows_what_it_can(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert "sudoku-hard" in shown(command("models"))


CLOSED = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}
FACTS = f"3 {[(True, True)] * 3}"
NUMBERS = """
import os, sys
from hrm_host.command import Command
app = Command("hrm-try")

@app.command()
def attempt(path: str) -> None:
    print("said", file=sys.stderr)
    os.write(2, b"a library's warning")
    with open(path, "w") as file:
        facts = [(os.get_inheritable(number), os.get_blocking(number)) for number in range(3)]
        file.write(f"{file.fileno()} {facts}")

app()
"""


def ended(arguments: list[str], *streams: str) -> subprocess.CompletedProcess[str]:
    """Run a shell that closes these streams and becomes the command."""
    closing = " ".join(CLOSED[stream] for stream in streams)
    shell = ["sh", "-c", f'exec "$@" {closing}', "sh", *arguments]
    return subprocess.run(shell, capture_output=True, text=True)


@pytest.mark.parametrize("streams", [("stderr",), ("stdout",), ("stdin",), tuple(CLOSED)])
def test_no_file_replaces_a_closed_stream(streams: tuple[str, ...], tmp_path: Path):
    done = ended([sys.executable, "-c", NUMBERS, str(tmp_path / "file")], *streams)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "file").read_text() == FACTS


@pytest.mark.parametrize("place", ["/dev/full", "a pipe that nobody reads"])
def test_a_standard_error_that_takes_nothing_changes_no_status(place: str, tmp_path: Path):
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


def test_an_empty_standard_input_is_one_that_is_closed():
    done = ended(command("solve", "-", "--bundle", "sudoku-6x6"), "stdin")
    assert done.returncode == 2
    assert done.stderr == "hrm-solve: '-' holds no puzzle: write one per line.\n"


def test_the_streams_of_a_command_wait(tmp_path: Path):
    """Python loses what a nonblocking pipe does not take, and takes a pause for the end."""
    readers, writers = zip(*[os.pipe() for _ in range(3)], strict=True)
    for handle in (*readers, *writers):
        os.set_blocking(handle, False)
    program = [sys.executable, "-c", NUMBERS, str(tmp_path / "file")]
    subprocess.run(program, stdin=readers[0], stdout=writers[1], stderr=writers[2], check=True)
    assert (tmp_path / "file").read_text() == FACTS
