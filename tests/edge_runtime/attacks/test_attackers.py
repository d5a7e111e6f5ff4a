"""Hostile clients leave the memory of a server and the answers of others alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attackers import ATTACKS, CONNECTIONS, attacking
from key_tools import AS_USER, write_key_file
from scripted_server import QUESTION
from service_tools import Server, resident_bytes, running, seconds_of_livez, wait_for

pytestmark = pytest.mark.process

MIB = 1 << 20
NUM_SENDERS = 8
NUM_CONNECTIONS = 6500  # more than --max-connections and the backlog hold
NUM_PROBES = 100
MIN_SENT = 100  # requests or pieces of the attack
PROMISED_S = 0.1  # p99 of /livez in docs/promises.md
CASES = [pytest.param(name, marks=[] if name == "values" else pytest.mark.slow) for name in ATTACKS]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(step_s=0.001) as server:
        server.solve(QUESTION)
        yield server


@pytest.mark.parametrize("name", CASES)
def test_an_attack_leaves_memory_and_others_alone(server: Server, name: str) -> None:
    require_unharmed(server, name)


@pytest.mark.slow
def test_strangers_without_a_key_leave_memory_and_others_alone(tmp_path: Path) -> None:
    with running(step_s=0.001, keys=write_key_file(tmp_path)) as server:
        server.http.headers.update(AS_USER)
        require_unharmed(server, "crumbs")


def require_unharmed(server: Server, name: str) -> None:
    """Without the bound on values the memory grows by 53 MiB; the bounds have their own tests."""
    pid = server.process.pid
    before_bytes = resident_bytes(pid)
    num_senders = NUM_CONNECTIONS if name == CONNECTIONS else NUM_SENDERS
    waited_s: list[float] = []
    with attacking(server.port, name, num_senders) as sent:
        wait_for(lambda: sent.value > 0)
        while sent.value < MIN_SENT or len(waited_s) < NUM_PROBES:
            waited_s.append(seconds_of_livez(server))
            assert server.solve(QUESTION).status_code == 200
            assert resident_bytes(pid) < before_bytes + 100 * MIB
    wait_for(lambda: resident_bytes(pid) < before_bytes + 50 * MIB)
    assert np.percentile(waited_s, 99) < PROMISED_S
    assert "Traceback" not in server.log
