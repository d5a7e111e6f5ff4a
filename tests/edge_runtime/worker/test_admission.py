"""What is let in, what is turned away, and what is dropped when nobody waits for it any more."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from service_tools import Server, ask_and_stay, asking, running, wait_for

pytestmark = pytest.mark.process


def test_answer_has_the_fields_of_the_contract_and_the_notation_of_the_question(
    server: Server, examples: dict[str, str]
) -> None:
    question, answer = next(iter(examples.items()))
    said = server.solve(question).json()
    names = (
        "solution status how solved verified segments halted_by margin queue_ms compute_ms "
        "model attempts total_segments votes vote_share route"
    )
    assert list(said) == names.split()
    assert said["solution"] == answer
    assert (said["solved"], said["verified"], said["segments"], said["halted_by"]) == (
        True,
        True,
        3,
        "proven",
    )
    rows = [
        [int(digit) if digit != "." else 0 for digit in question[start : start + 4]]
        for start in range(0, 16, 4)
    ]
    assert server.solve(rows).json()["solution"] == [
        [int(digit) for digit in answer[i : i + 4]] for i in range(0, 16, 4)
    ]


def test_wrong_answer_is_neither_solved_nor_verified(
    server: Server, examples: dict[str, str]
) -> None:
    said = server.solve(next(iter(examples)), max_segments=1, policy="fixed").json()
    assert (said["solved"], said["verified"], said["halted_by"]) == (False, False, "max_segments")


@pytest.mark.parametrize(
    ("fields", "status", "reason", "field"),
    [
        ({"model": "another"}, 404, "unknown-model", "model"),
        ({"kind": "maze"}, 422, "bad-request", "kind"),
        ({"max_segments": 17}, 422, "bad-request", "max_segments"),
        ({"attempts": 9}, 422, "bad-request", "attempts"),
        ({"attempts": 0}, 422, "bad-request", "attempts"),
        ({"max_segments": 0}, 422, "bad-request", "max_segments"),
        ({"policy": "guess"}, 422, "bad-request", "policy"),
        ({"deadline_ms": 1.5}, 422, "bad-request", "deadline_ms"),
    ],
)
def test_options_out_of_range_are_refused_by_name(
    server: Server,
    examples: dict[str, str],
    fields: dict[str, object],
    status: int,
    reason: str,
    field: str,
) -> None:
    response = server.solve(next(iter(examples)), **fields)
    error = response.json()["error"]
    assert (response.status_code, error["reason"], error["field"]) == (status, reason, field)


def test_options_that_fit_are_taken(server: Server, examples: dict[str, str]) -> None:
    fields = {
        "model": "scripted",
        "kind": "sudoku-4x4",
        "policy": "learned",
        "max_segments": 16,
        "deadline_ms": 60_000,
    }
    assert server.solve(next(iter(examples)), **fields).json()["halted_by"] == "learned"


def test_full_queue_deadline_and_departed_clients(examples: dict[str, str]) -> None:
    """One server for three laws, because each needs the same slow engine of one slot."""
    question = next(iter(examples))
    with running(slots=1, queue_limit=2, step_s=0.1, segments=8) as server:
        server.wait_until_ready()
        with asking(server, list(islice(cycle(examples), 3))) as futures:
            refused = server.solve(question)
            assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "queue-full")
            assert int(refused.headers["retry-after"]) >= 1
            assert server.status("/readyz") == 200
            assert [future.result().status_code for future in futures] == [200] * 3
        late = server.solve(question, deadline_ms=300)
        assert (late.status_code, late.json()["error"]["reason"]) == (504, "deadline-missed")
        wait_for(lambda: server.slots()["lanes"][0]["lane"]["num_active"] == 0)
        before = _completed(server)
        connections = [ask_and_stay(server, question) for _ in range(3)]
        wait_for(lambda: server.slots()["waiting"] == 3)
        for connection in connections:
            connection.close()
        wait_for(lambda: server.slots()["waiting"] == 0)
        wait_for(
            lambda: _completed(server) == {**before, "cancelled": before.get("cancelled", 0) + 3}
        )
        assert server.slots()["lanes"][0]["lane"]["num_active"] == 0
        assert server.solve(question).json()["solved"]


def _completed(server: Server) -> dict[str, int]:
    return server.slots()["lanes"][0]["lane"]["completed"]
