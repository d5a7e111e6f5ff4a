"""`hrm-bench chaos` in its short form: a server that is killed, stopped, reloaded and flooded."""

import pytest
from bench_tools import figures_of, refusal_of

pytestmark = pytest.mark.process


def names_after(prefix: str, counts: dict[str, int]) -> set[str]:
    return {name.removeprefix(prefix) for name in counts if name.startswith(prefix)}


def test_in_all_troubles_each_request_is_answered_once_and_correctly_or_told_why_not() -> None:
    figures = figures_of("chaos --minutes 0.08 --every-s 0.6 --puzzles 20")
    assert figures["faults"] == []
    counts = figures["counts"]
    troubles = {"kill", "stop", "reload", "flood", "crumble", "read_slowly", "leave"}
    assert names_after("made: ", counts) == troubles
    assert counts["answered"] > 50
    assert names_after("refused: ", counts) <= {"engine-lost", "queue-full"}


def test_an_unknown_attack_is_rejected_in_one_sentence() -> None:
    sentence = refusal_of("chaos --attack sponges")
    assert "'sponges' is not an attack" in sentence
