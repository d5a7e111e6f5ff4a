"""What is let in, what is turned away, and what is dropped when nobody waits for it any more."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import numpy as np
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
    assert said["solved"] is True
    assert said["verified"] is True
    assert said["segments"] == 3
    assert said["halted_by"] == "proven"
    in_rows = server.solve(rows_of(question)).json()
    assert in_rows["solution"] == rows_of(answer)


def rows_of(text: str) -> list[list[int]]:
    cells = np.array(list(text.replace(".", "0")), np.int8)
    return cells.reshape(4, 4).tolist()


def test_wrong_answer_is_neither_solved_nor_verified(
    server: Server, examples: dict[str, str]
) -> None:
    said = server.solve(next(iter(examples)), max_segments=1, policy="fixed").json()
    assert (said["solved"], said["verified"], said["halted_by"]) == (False, False, "max_segments")


def test_options_that_fit_are_taken(server: Server, examples: dict[str, str]) -> None:
    said = server.solve(
        next(iter(examples)),
        model="scripted",
        kind="sudoku-4x4",
        policy="learned",
        max_segments=16,
        deadline_ms=60_000,
    )
    assert said.json()["halted_by"] == "learned"


def test_a_full_queue_turns_away_and_departed_clients_free_their_places(
    examples: dict[str, str],
) -> None:
    """One server for both laws, because each needs the same slow engine of one slot."""
    question = next(iter(examples))
    with running(slots=1, queue_limit=2, step_s=0.1, segments=8) as server:
        server.wait_until_ready()
        with asking(server, list(islice(cycle(examples), 3))) as futures:
            refused = server.solve(question)
            assert refused.status_code == 503
            assert refused.json()["error"]["reason"] == "queue-full"
            assert int(refused.headers["retry-after"]) >= 1
            assert server.status("/readyz") == 200
            assert [future.result().status_code for future in futures] == [200] * 3
        wait_for(lambda: _lane(server)["num_active"] == 0)
        before = _lane(server)["completed"]
        connections = [ask_and_stay(server, question) for _ in range(3)]
        wait_for(lambda: server.slots()["waiting"] == 3)
        for connection in connections:
            connection.close()
        after = {**before, "cancelled": 3}
        wait_for(lambda: _lane(server)["completed"] == after)
        assert server.slots()["waiting"] == 0
        assert _lane(server)["num_active"] == 0
        assert server.solve(question).json()["solved"]


def _lane(server: Server) -> Any:
    return server.slots()["lanes"][0]["lane"]
