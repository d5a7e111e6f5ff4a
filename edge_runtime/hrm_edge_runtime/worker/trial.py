"""Tries a bundle in a process of its own before a server opens it.

Its graph may run forever, take too much memory or compute NaN.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection

import numpy as np

from hrm_edge_runtime.contract.bundle import GOLDEN_NAME, Bundle
from hrm_edge_runtime.engines.engine import load_blanks
from hrm_edge_runtime.engines.factory import engine_for
from hrm_edge_runtime.worker.lane_manager import LaneNotOpenedError
from hrm_edge_runtime.worker.lanes import LaneOptions, in_mib
from hrm_edge_runtime.worker.loop import die_with_parent
from hrm_host.memory import resident_bytes
from hrm_host.system import ignore_interrupts

TRIAL_S = 60.0  # a shipped model takes one second
LOOK_EVERY_S = 0.05
NUM_SLOTS = 4  # slots that replay the golden traces


async def try_lane(
    options: LaneOptions,
    *,
    limit_s: float = TRIAL_S,
    is_closing: Callable[[], bool] = lambda: False,
) -> None:
    """Replay a bundle's golden traces in bounded time and memory; raises LaneNotOpenedError."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_process_main, args=(options, theirs), name="hrm-trial", daemon=True
    )
    process.start()
    theirs.close()
    room_bytes = options.defaults.budget.room_bytes()
    give_up_s = time.monotonic() + limit_s
    try:
        while process.is_alive():
            if is_closing():
                raise LaneNotOpenedError("the server stops.")
            if time.monotonic() > give_up_s:
                fault = f"its trial took more than {limit_s:g} s: export the bundle again."
                raise LaneNotOpenedError(fault)
            _check_memory(process.pid, room_bytes)
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            fault = ours.recv()
        except EOFError:
            fault = f"its trial ended with status {process.exitcode}: export the bundle again."
        if fault:
            raise LaneNotOpenedError(fault)
    finally:
        process.kill()
        process.join()
        ours.close()


def _check_memory(pid: int | None, room_bytes: int) -> None:
    held_bytes = resident_bytes(pid)
    if held_bytes > room_bytes:
        raise LaneNotOpenedError(
            f"its trial took {in_mib(held_bytes)}: remove a model, or start the server with a "
            "larger --memory-budget.",
            is_over_budget=True,
        )


def _process_main(options: LaneOptions, connection: "Connection[str, str]") -> None:
    ignore_interrupts()
    die_with_parent()
    try:
        connection.send(_fault_of(options))
    except Exception as error:  # whatever a bundle does wrong
        connection.send(str(error) or type(error).__name__)


def _fault_of(options: LaneOptions) -> str:
    """Return the bundle's problem in one sentence, or an empty string.

    A bundle without golden traces must at least compute finite numbers.
    """
    bundle = Bundle.open(options.bundle_path)
    if GOLDEN_NAME in bundle.manifest.files and options.choice.engine != "unrolled":
        return _broken_parity(bundle, options)
    opened = engine_for(
        bundle,
        engine=str(options.choice),
        num_slots=1,
        num_threads=options.defaults.num_threads,
    )
    with closing(opened) as engine:
        load_blanks(engine, bundle.puzzle_table[0])
        output = engine.step(1)
    values = np.concatenate([output.halt_margin_B, output.q_halt_B])
    if not np.isfinite(values).all():
        return "it computes values that are not finite: export it again."
    return ""


def _broken_parity(bundle: Bundle, options: LaneOptions) -> str:
    from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

    parity = ParityOptions(
        engine=str(options.choice), slots=NUM_SLOTS, threads=options.defaults.num_threads
    )
    broken = compare_engines(bundle, parity).breaks
    if not broken:
        return ""
    return f"it does not compute what its golden traces say ({broken[0]}): export it again."
