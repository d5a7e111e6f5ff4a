"""A server opens only bundles that passed a trial: they neither hang nor swell nor compute NaN."""

import asyncio
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from bundle_tools import restate, turn_head
from echo_bundle import ECHO_STEP, write_echo_bundle

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.http.library import models_and_library
from hrm_edge_runtime.worker.lane_manager import LaneNotOpenedError
from hrm_edge_runtime.worker.lanes import LaneDefaults, LaneOptions, MemoryBudget
from hrm_edge_runtime.worker.trial import try_lane

pytestmark = pytest.mark.process
DEFAULTS = LaneDefaults(
    engine="cpu:fp32", num_slots=2, num_threads=1, queue_limit=8, max_attempts=2
)
NAN_STEP = ECHO_STEP.replace(
    "halt_margin_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)",
    "sum_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)\n  less_B = Sub (sum_B, sum_B)\n"
    "  halt_margin_B = Div (less_B, less_B)",
)
ENDLESS_STEP = ECHO_STEP.replace(
    "z_high_BND_next = Identity (z_high_BND)",
    """rounds = Constant <value = int64 {9223372036854775807}> ()
  again = Constant <value = bool {1}> ()
  z_high_BND_next = Loop <body = once (int64 round, bool cond_in, float[B,17,4] z_in)
    => (bool cond_out, float[B,17,4] z_out) {
      cond_out = Identity (cond_in)
      z_out = Tanh (z_in)
    }> (rounds, again, z_high_BND)""",
)


def options_for(path: Path) -> LaneOptions:
    _, library = models_and_library([Bundle.open(path)], DEFAULTS)
    (lane,) = library.lanes.values()
    return lane


async def fault_of(options: LaneOptions, limit_s: float = 60.0) -> str:
    with pytest.raises(LaneNotOpenedError) as refused:
        await try_lane(options, limit_s=limit_s)
    assert not multiprocessing.active_children()
    return str(refused.value)


async def test_a_bundle_computes_its_golden_traces(tiny_bundle: Path, tmp_path: Path) -> None:
    await try_lane(options_for(tiny_bundle))
    assert not multiprocessing.active_children()
    turned = shutil.copytree(tiny_bundle, tmp_path / "turned.bundle")
    onnx.save(turn_head(turned), turned / "step.fp32.onnx")
    restate(turned)
    assert "does not compute what its golden traces say" in await fault_of(options_for(turned))


async def test_nan_is_rejected_without_golden_traces(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "nan.bundle", step=NAN_STEP)
    told = "it computes values that are not finite: export it again."
    assert await fault_of(options_for(bundle)) == told


def test_a_bundle_is_tried_before_a_server_starts_with_it(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "nan.bundle", name="bad", step=NAN_STEP)
    _, library = models_and_library([Bundle.open(bundle)], DEFAULTS)
    refusal = "the bundle 'bad' is not served: it computes values that are not finite"
    with pytest.raises(BundleError, match=refusal):
        list(library.build())


async def test_an_endless_graph_is_given_up_while_the_loop_runs(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "endless.bundle", step=ENDLESS_STEP)
    options = options_for(bundle)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.ensure_future(count())
    told = "its trial took more than 2 s: export the bundle again."
    assert await fault_of(options, limit_s=2.0) == told
    counting.cancel()
    assert turns > 20


async def test_a_trial_takes_no_more_memory_than_the_budget(tiny_bundle: Path) -> None:
    options = options_for(tiny_bundle)
    defaults = replace(DEFAULTS, budget=MemoryBudget(limit_bytes=1 << 20))
    options = replace(options, defaults=defaults)
    assert "its trial took" in await fault_of(options)
