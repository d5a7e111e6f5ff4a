"""A server opens only bundles that passed a trial: they neither hang nor swell nor compute NaN."""

import asyncio
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from asgi_tools import DEFAULTS
from bundle_tools import restate, turn_head
from echo_bundle import ECHO_STEP, GROWING_STEP, LONG_STEP, write_echo_bundle

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.worker.lane_manager import LaneNotOpenedError
from hrm_edge_runtime.worker.lanes import LaneDefaults, MemoryBudget
from hrm_edge_server.library import Library
from hrm_parity.trial import try_bundle

pytestmark = pytest.mark.process
NAN_STEP = ECHO_STEP.replace(
    "halt_margin_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)",
    "sum_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)\n  less_B = Sub (sum_B, sum_B)\n"
    "  halt_margin_B = Div (less_B, less_B)",
)


async def fault_of(path: Path, defaults: LaneDefaults = DEFAULTS, **limits: Any) -> str:
    with pytest.raises(LaneNotOpenedError) as refused:
        await try_bundle(path, defaults, **limits)
    assert not multiprocessing.active_children()
    return str(refused.value)


async def test_a_bundle_computes_its_golden_traces(copied: Path):
    await try_bundle(copied, DEFAULTS)
    assert not multiprocessing.active_children()
    onnx.save(turn_head(copied), copied / "step.fp32.onnx")
    restate(copied)
    assert "does not compute what its golden traces say" in await fault_of(copied)


def test_a_bundle_is_tried_before_a_server_starts_with_it(tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "nan.bundle", name="bad", step=NAN_STEP)
    library = Library(DEFAULTS)
    library.start_with([Bundle.open(bundle)])
    refusal = "the bundle 'bad' is not served: it computes values that are not finite"
    with pytest.raises(BundleError, match=refusal):
        list(library.build())


async def test_a_long_graph_is_given_up_while_the_loop_runs(tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "long.bundle", step=LONG_STEP)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.ensure_future(count())
    told = "its trial took more than 1 s of CPU time: export the bundle again."
    assert await fault_of(bundle, limit_s=1.0) == told
    counting.cancel()
    assert turns > 20


async def test_time_that_others_use_does_not_count(tiny_bundle: Path):
    """The trial stops for a while, as on a board that is busy otherwise."""

    async def stop_for_a_while() -> None:
        while not multiprocessing.active_children():
            await asyncio.sleep(0.01)
        (child,) = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGSTOP)
        await asyncio.sleep(2.5)
        os.kill(child.pid, signal.SIGCONT)

    stopping = asyncio.ensure_future(stop_for_a_while())
    await try_bundle(tiny_bundle, DEFAULTS, limit_s=2.0)
    await stopping


@pytest.mark.parametrize("num_names", [1, 500_000])
async def test_a_trial_takes_no_more_memory_than_the_engine_leaves(tmp_path: Path, num_names: int):
    """A graph that grows, and a file whose names take much memory when they are read."""
    step = GROWING_STEP if num_names == 1 else ECHO_STEP
    bundle = write_echo_bundle(tmp_path / "large.bundle", step=step)
    if num_names > 1:
        names = ["<blank>", "x" * 200, *map(str, range(num_names - 2))]
        (bundle / "identifiers.json").write_text(json.dumps(names))
        np.save(bundle / "puzzle_table.npy", np.zeros((num_names, 4), np.float32))
        restate(bundle, num_puzzle_ids=num_names)
    budget = MemoryBudget(limit_bytes=140 << 20)
    defaults = DEFAULTS._replace(budget=budget)
    told = await fault_of(bundle, defaults, engine_bytes=100 << 20)
    assert "beside what the engine holds: remove a model" in told
