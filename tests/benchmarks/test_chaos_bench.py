"""`hrm-bench chaos` in its short form: a server that is killed, stopped, reloaded and flooded."""

import json

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app

pytestmark = pytest.mark.process


def names_after(prefix: str, counts: dict[str, int]) -> set[str]:
    return {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}


def test_in_all_troubles_each_request_is_answered_once_and_correctly_or_told_why_not() -> None:
    arguments = "chaos --minutes 0.08 --every-s 0.6 --puzzles 20 --json"
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    figures = json.loads(ended.stdout)
    assert figures["faults"] == []
    assert ended.exit_code == 0
    counts = figures["counts"]
    troubles = {"kill", "stop", "reload", "flood", "crumble", "read_slowly", "leave"}
    assert names_after("made: ", counts) == troubles
    assert counts["answered"] > 50
    assert names_after("refused: ", counts) <= {"engine-lost", "queue-full"}


def test_an_unknown_attack_is_rejected_in_one_sentence() -> None:
    ended = CliRunner().invoke(app, "chaos --attack sponges")
    assert ended.exit_code == 2
    assert "'sponges' is not an attack" in ended.stderr
