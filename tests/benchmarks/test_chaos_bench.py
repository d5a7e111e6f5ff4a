"""The bench among troubles, in its short form: a real server that is killed, stopped, reloaded, flooded and left."""

import json

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app

pytestmark = pytest.mark.process


def test_among_all_troubles_each_request_is_answered_once_and_right_or_told_why_not() -> None:
    arguments = ["chaos", "--minutes", "0.08", "--every-s", "0.6", "--puzzles", "20", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["faults"]) == (0, [])
    counts = found["counts"]
    made = {name.partition(": ")[2] for name in counts if name.startswith("made: ")}
    assert made == {"kill", "stop", "reload", "flood", "crumble", "read_slowly", "leave"}
    assert counts["answered"] > 50
    refused = {name.partition(": ")[2] for name in counts if name.startswith("refused: ")}
    assert refused <= {"engine-lost", "queue-full"}
