"""What `hrm-solve` shows: counts, and boards in color."""

from pathlib import Path

import pytest
from solving_tools import answer

from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer
from hrm_edge_runtime.solve.key import read_key
from hrm_edge_runtime.solve.output import Tally, judged, record_of, summary
from hrm_edge_runtime.solve.puzzles import Entry
from hrm_edge_runtime.solve.solvers import Solver
from hrm_puzzles import registry


def test_counts_tell_solved_proven_and_refused_by_reason() -> None:
    tally = Tally()
    entry = Entry(number=1, fields={"puzzle": "x"})
    refusal = ErrorDetail(
        reason="bad-puzzle", field=None, rule=None, cell=None, message="no", remedy="fix it"
    )
    for outcome in (answer("x"), answer("x"), answer("x", solved=False), refusal):
        tally.add(record_of(entry, outcome))
    assert tally.note() == "2 solved, 1 refused"
    assert tally.text() == (
        "4 puzzles: 2 proven, 1 unfinished, 1 refused (1 bad-puzzle); 2.0 segments on average"
    )


def test_what_a_model_halted_on_is_solved_only_by_the_callers_own_label() -> None:
    solver = Solver(puzzles={"m": registry.get("arc-7x7")}, solve_all=lambda _: ())
    question = {"task": "t", "input": [[0, 7]]}
    word = {"status": "halted", "attempts": 3, "vote_share": 2 / 3}
    halted = answer([[7, 0]], solved=False).model_copy(update=word)
    told = summary(halted)
    assert told.startswith("the model's word, no proof exists, 67 % of the votes: 3 attempts")
    tally = Tally()
    labels = [([[7, 0]], True), ([[7, 7]], False), ("no board", False), (None, False)]
    for known, is_right in labels:
        entry = Entry(number=1, fields={"puzzle": question}, known=known)
        shown = judged(solver, entry, halted)
        assert isinstance(shown, SolveAnswer)
        assert shown.solved == is_right
        tally.add(record_of(entry, shown))
    assert tally.text().startswith("4 puzzles: 4 halted, 1 right by their labels; ")


def test_the_key_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HRM_API_KEY", "from-the-environment")
    assert read_key(None) == "from-the-environment"
    (tmp_path / "key").write_text("from-the-file\n")
    assert read_key(tmp_path / "key") == "from-the-file"
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="is empty"):
        read_key(tmp_path / "empty")
