"""After any mixture of answers, refusals, streams and departures nothing is left: no task, no place, no slot."""

from __future__ import annotations

import asyncio
import json

from asgi_tools import QUICK, Call, app_over, client_of, until
from scripted_server import examples

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
QUESTIONS = [json.dumps({"puzzle": question}).encode() for question in examples()]


async def test_no_task_place_or_slot_outlives_its_request() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.005, segments=4))
    async with client_of(app, engine_client) as http:
        await http.post("/solve", content=QUESTIONS[0], headers=JSON)
        before = _tasks()
        for body in (QUESTIONS[0], b"{", b'{"puzzle": "1"}'):
            await asyncio.gather(*(http.post("/solve", content=body, headers=JSON) for _ in range(20)))
        calls = [Call(app, path, JSON) for path in ("/solve", "/solve/stream") for _ in range(4)]
        calls += [Call(app, "/solve/batch", NDJSON, query=f"order={order}") for order in ("kept", "as-finished")]
        for call in calls:
            call.give(b"\n".join(QUESTIONS[:1] if call not in calls[8:] else QUESTIONS * 3), more=False)
        await asyncio.sleep(0.01)
        for call in calls[::2]:
            call.leave()
        await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 60)
        await until(lambda: _tasks() <= before)
        assert engine_client.num_waiting == 0
        assert engine_client.limits.num_taken("scripted") == 0
        await until(lambda: _lane(engine_client) == (0, 0))


def _lane(engine_client: object) -> tuple[int, int]:
    lane = engine_client.snapshot.lanes["scripted"]  # type: ignore[attr-defined]
    return lane.num_active, lane.num_queued


def _tasks() -> set[str]:
    """The names of all that live; every task has a name of its own."""
    return {task.get_name() for task in asyncio.all_tasks()}
