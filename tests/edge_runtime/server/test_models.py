"""Models that come and go while the server runs: who answers, and what is refused."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from asgi_tools import SOLVED, UPLOAD, Call, House, house_of, until
from bundle_tools import archived
from echo_bundle import LONG_STEP, write_echo_bundle
from files import lines_in
from service_tools import AS_USER, Server, children_of, command, refusal, upload_server, wait_for
from starlette.testclient import TestClient

from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine

pytestmark = pytest.mark.usefixtures("untried")

OPEN = "123434122143432."
MANY = 2000  # segments of the echo model, which take a second or more


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment takes at least half a millisecond, however fast the machine is."""
    plain_step = OnnxEngine.step

    def step(engine: OnnxEngine, num_rows: int) -> StepOutput:
        time.sleep(0.0005)
        return plain_step(engine, num_rows)

    monkeypatch.setattr(OnnxEngine, "step", step)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """It serves one echo model, `slow`, which takes a second over what it cannot solve."""
    async with house_of(tmp_path, "slow", max_segments=MANY) as house:
        yield house


async def test_a_bundle_is_added_and_removed_and_its_memory_is_reported(house: House):
    write_echo_bundle(house.folder / "second.bundle", name="second")
    added = await house.put("second")
    change = added.json()
    assert (added.status_code, change["replaced"]) == (201, False)
    assert (change["model"]["slots"], change["model"]["slots_rule"]) == (2, "given")
    assert change["model"]["memory_bytes"] >= 0
    assert await house.names() == ["slow", "second"]
    assert (await house.solve(SOLVED, "second"))["model"] == "second"
    assert (await house.solve(OPEN, "second"))["segments"] == 3
    removed = await house.remove("second")
    assert (removed.status_code, removed.json()) == (200, {"removed": "second"})
    assert (await house.solve(SOLVED, "second"))["error"]["reason"] == "unknown-model"
    await until(lambda: house.lanes == [("slow", 1)])


async def test_a_model_may_return_at_once(house: House, monkeypatch: pytest.MonkeyPatch):
    write_echo_bundle(house.folder / "second.bundle", name="second")
    assert (await house.put("second")).status_code == 201
    # the last act of closing takes a while
    monkeypatch.setattr("hrm_host.memory.give_back_freed_memory", lambda: time.sleep(0.3))
    assert (await house.remove("second")).status_code == 200
    await until(lambda: len(house.lanes) == 1)
    assert (await house.put("second")).status_code == 201
    for _ in range(2):
        assert (await house.put("slow")).status_code == 200
    assert await house.names() == ["slow", "second"]
    for model in ("slow", "second"):
        assert (await house.solve(SOLVED, model))["model"] == model


async def test_a_reload_lets_the_old_lane_finish_what_it_was_given(house: House):
    more_than_slots = range(3)
    old = [asyncio.ensure_future(house.solve(OPEN, "slow")) for _ in more_than_slots]
    await until(lambda: house.engine_client.num_waiting == 3)
    write_echo_bundle(house.folder / "new.bundle", name="slow", max_segments=7)
    reloaded = await house.put("slow", "new")
    assert (reloaded.status_code, reloaded.json()["replaced"]) == (200, True)
    assert not any(one.done() for one in old)
    assert (await house.solve(OPEN, "slow"))["segments"] == 7
    for answer in await asyncio.gather(*old):
        assert answer["segments"] == MANY
    await until(lambda: house.lanes == [("slow", 2)])
    assert (await house.solve(OPEN, "slow"))["segments"] == 7
    slots = (await house.http.get("/slots", headers=AS_USER)).json()
    assert [one["name"] for one in slots["lanes"]] == ["slow"]


@pytest.mark.parametrize("num_rounds", [2, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_reload_loses_no_line_of_a_batch(house: House, num_rounds: int):
    """Three batches of 50 lines wait for five places, and two reloads come one after the other."""
    line = json.dumps({"puzzle": OPEN, "model": "slow", "max_segments": 2}).encode() + b"\n"
    headers = {"content-type": "application/x-ndjson", **AS_USER}
    for _ in range(num_rounds):
        batches = [Call(house.app, "/solve/batch", headers) for _ in range(3)]
        for batch in batches:
            batch.give(line * 50, more=False)
        await until(lambda: house.engine_client.num_waiting > 1)
        for _ in range(2):
            assert (await house.put("slow")).status_code == 200
        await asyncio.wait_for(asyncio.gather(*(batch.task for batch in batches)), 60)
        for batch in batches:
            answers = lines_in(batch.body)
            assert sorted(answer["line"] for answer in answers) == list(range(1, 51))
            assert {answer["answer"]["segments"] for answer in answers} == {2}
    assert house.engine_client.process.num_losses == 0
    await until(lambda: len(house.lanes) == 1)


def test_without_keys_nobody_changes_what_is_served(keyless: TestClient):
    refused = keyless.put("/models/slow", content=b"")
    assert refused.status_code == 403
    assert "--keys" in refused.json()["error"]["remedy"]


def put(server: Server, name: str, bundle: Path) -> httpx.Response:
    return server.http.put(f"/models/{name}", content=archived(bundle), headers=UPLOAD)


@pytest.mark.process
def test_a_served_change_outlives_the_engine_process(tmp_path: Path):
    folder = tmp_path / "bundles"
    folder.mkdir()
    write_echo_bundle(folder / "first.bundle", name="first")
    write_echo_bundle(folder / "second.bundle", name="second")
    with upload_server(tmp_path, folder / "first.bundle", "--memory-budget=1GiB") as server:
        model = server.models()[0]
        assert model["slots_rule"] in ("compute-bound", "knee")
        assert model["step_ms"]["1"] > 0
        # what was measured is in the user's cache
        assert not (folder / "first.bundle" / "engines").exists()
        assert put(server, "second", folder / "second.bundle").status_code == 201
        assert server.http.delete("/models/first").status_code == 200
        os.kill(server.engine["pid"], signal.SIGKILL)
        wait_for(lambda: server.engine["losses"] == 1)
        server.wait_until_ready()
        assert server.solve(SOLVED).json()["model"] == "second"


@pytest.mark.process
def test_a_signal_during_a_trial_ends_the_server_without_an_error(tmp_path: Path):
    first = write_echo_bundle(tmp_path / "first.bundle", name="first")
    write_echo_bundle(tmp_path / "long.bundle", name="long", step=LONG_STEP)
    with (
        upload_server(tmp_path, first, "--slots=2") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        changing = pool.submit(put, server, "long", tmp_path / "long.bundle")
        # a tracker, the engine and the trial
        wait_for(lambda: len(children_of(server.process)) > 2)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert refusal(changing.result()) == (503, "draining")
        assert server.exit_status() == 0
        assert "Traceback" not in server.log


@pytest.mark.process
def test_a_signal_during_the_trial_of_a_start_ends_it_without_an_error(tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "long.bundle", name="long", step=LONG_STEP)
    with Server(command("serve", bundle, "--threads=1")) as server:
        wait_for(lambda: len(children_of(server.process)) > 1)
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.exit_status() == 0
        assert "Traceback" not in server.log
