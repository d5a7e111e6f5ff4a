"""A bundle is tried in a process of its own before a server opens it: its graph may never end, or give NaN."""

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

TRIAL_S = 60.0  # a shipped model takes one
LOOK_EVERY_S = 0.05
NUM_SLOTS = 4


async def try_lane(options: LaneOptions, *, limit_s: float = TRIAL_S, is_closing: Callable[[], bool] = bool) -> None:
    """Replay the golden traces of a lane to be, in bounded time and memory; raises LaneNotOpenedError."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_process_main, args=(options, theirs), name="hrm-trial", daemon=True)
    process.start()
    theirs.close()
    room_bytes, give_up_s = options.defaults.budget.room_bytes(), time.monotonic() + limit_s
    try:
        while process.is_alive():
            if is_closing():
                raise LaneNotOpenedError("the server stops.", None)
            if time.monotonic() > give_up_s:
                raise LaneNotOpenedError(f"its trial took more than {limit_s:g} s: export the bundle again.", None)
            if (held := resident_bytes(process.pid)) > room_bytes:
                message = (
                    f"its trial took {in_mib(held)}: remove a model, or start the server with a larger --memory-budget."
                )
                raise LaneNotOpenedError(message, held - room_bytes)
            await asyncio.sleep(LOOK_EVERY_S)
        try:
            fault: str = ours.recv()
        except EOFError:
            fault = f"its trial ended with status {process.exitcode}: export the bundle again."
        if fault:
            raise LaneNotOpenedError(fault, None)
    finally:
        process.kill()
        process.join()
        ours.close()


def _process_main(options: LaneOptions, connection: "Connection[str, str]") -> None:
    ignore_interrupts()
    die_with_parent()
    try:
        connection.send(_fault_of(options))
    except Exception as error:  # whatever a bundle does wrong
        connection.send(str(error) or type(error).__name__)


def _fault_of(options: LaneOptions) -> str:
    """One sentence, or nothing. A bundle without golden traces must at least compute numbers."""
    from hrm_edge_runtime.parity.comparison import ParityOptions, compare_engines

    bundle, engine, num_threads = Bundle.open(options.bundle_path), str(options.choice), options.defaults.num_threads
    if GOLDEN_NAME in bundle.manifest.files and options.choice.engine != "unrolled":
        broken = compare_engines(bundle, ParityOptions(engine=engine, slots=NUM_SLOTS, threads=num_threads)).breaks
        return f"it does not compute what its golden traces say ({broken[0]}): export it again." if broken else ""
    with closing(engine_for(bundle, engine=engine, num_slots=1, num_threads=num_threads)) as opened:
        load_blanks(opened, bundle.puzzle_table[0])
        said = opened.step(1)
    is_finite = np.isfinite(said.halt_margin_B).all() and np.isfinite(said.q_halt_B).all()
    return "" if is_finite else "it computes values that are not finite: export it again."
