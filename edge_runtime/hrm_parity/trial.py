"""Tries a bundle in a process of its own before the server opens it.

Its files may take much memory to read. Its graph may run forever, take too much memory or compute
NaN.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import GOLDEN_NAME, Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import load_blanks
from hrm_edge_runtime.worker.lane_manager import LaneNotOpenedError
from hrm_edge_runtime.worker.lanes import LaneDefaults, in_mib, with_fewer_threads
from hrm_host import system
from hrm_host.machine import cpu_seconds
from hrm_host.memory import peak_bytes, resident_bytes
from hrm_host.workers import end_with_parent

TRIAL_S = 60.0  # CPU seconds; a shipped model takes one second
MAX_WAIT = 10  # times the limit that a trial may take on the clock
LOOK_EVERY_S = 0.05
NUM_SLOTS = 4  # slots that replay the golden traces
OWN_MODULES = ("hrm_edge_runtime.engines.onnx", "hrm_parity.cli")
"""Loaded before a trial counts memory."""


class StoppedError(Exception):
    """The server stops, so the trial has no outcome."""


async def try_bundle(
    path: Path,
    defaults: LaneDefaults,
    *,
    engine_bytes: int = 0,
    limit_s: float = TRIAL_S,
    is_closing: Callable[[], bool] = lambda: False,
) -> None:
    """Open a bundle and replay its golden traces in bounded CPU time and memory.

    The trial may take the memory budget minus `engine_bytes`, which the engine holds.
    Raises LaneNotOpenedError, or StoppedError as soon as `is_closing`.
    """
    trial = _Trial(path, defaults, defaults.budget.room_bytes(engine_bytes), limit_s)
    try:
        while trial.is_running():
            if is_closing():
                raise StoppedError
            await asyncio.sleep(LOOK_EVERY_S)
        fault = trial.fault()
    finally:
        trial.close()
    if fault:
        raise LaneNotOpenedError(fault)


class _Trial:
    """The process of a trial. Its own code does not count as memory of the bundle."""

    def __init__(self, path: Path, defaults: LaneDefaults, room_bytes: int, limit_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_process_main, args=(path, defaults, theirs), name="hrm-trial", daemon=True
        )
        with system.signals_blocked():
            self._process.start()
        theirs.close()
        self._room_bytes = room_bytes
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._own_bytes: int | None = None

    def is_running(self) -> bool:
        """Whether it has not ended; raises LaneNotOpenedError if it exceeds its limits."""
        if self._own_bytes is None and self._connection.poll():
            self._own_bytes = self._received()
        if not self._process.is_alive():
            return False
        if self._own_bytes is not None:
            held_bytes = resident_bytes(self._process.pid)
            self._check_memory(held_bytes - self._own_bytes)
        self._check_time()
        return True

    def fault(self) -> str:
        """The bundle's problem after the trial has ended; empty if there is none.

        Raises LaneNotOpenedError if it took too much memory in between.
        """
        own_bytes = self._own_bytes
        if own_bytes is None:
            own_bytes = self._received()
        outcome = self._received()
        if outcome is None:
            status = self._process.exitcode
            return f"its trial ended with status {status}: export the bundle again."
        fault, most_bytes = outcome
        if not fault:
            self._check_memory(most_bytes - own_bytes)
        return fault

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _received(self) -> Any:
        try:
            return self._connection.recv()
        except EOFError:
            return None

    def _check_time(self) -> None:
        problem = None
        if cpu_seconds(self._process.pid) > self._limit_s:
            problem = f"its trial took more than {self._limit_s:g} s of CPU time"
        elif time.monotonic() - self._began_s > MAX_WAIT * self._limit_s:
            problem = f"its trial did not end within {MAX_WAIT * self._limit_s:g} s"
        if problem is not None:
            raise LaneNotOpenedError(f"{problem}: export the bundle again.")

    def _check_memory(self, taken_bytes: int) -> None:
        if taken_bytes > self._room_bytes:
            raise LaneNotOpenedError(
                f"its trial took {in_mib(taken_bytes)} beside what the engine holds: "
                "remove a model, or start the server with a larger --memory-budget.",
                is_over_budget=True,
            )


def _process_main(path: Path, defaults: LaneDefaults, connection: "Connection[Any, Any]") -> None:
    """Send the memory of this process, then the bundle's fault and the most memory held."""
    system.ignore_interrupts()
    end_with_parent()
    for name in OWN_MODULES:
        with contextlib.suppress(ImportError):  # a Jetson lacks ONNX Runtime
            importlib.import_module(name)
    connection.send(resident_bytes())
    try:
        fault = _fault_of(path, defaults)
    except Exception as error:  # whatever a bundle does wrong
        fault = str(error) or type(error).__name__
    connection.send((fault, peak_bytes()))


def _fault_of(path: Path, defaults: LaneDefaults) -> str:
    """Return the bundle's problem in one sentence, or an empty string.

    A bundle without golden traces must at least compute finite numbers. A TensorRT engine is tried
    when it is built.
    """
    bundle = Bundle.open(path)
    defaults = with_fewer_threads(defaults)
    choice = factory.presumed(bundle, defaults.engine)
    if choice.engine == factory.OPENED_WHERE_USED:
        return ""
    if GOLDEN_NAME in bundle.manifest.files and choice.engine != "unrolled":
        from hrm_parity.cli import ParityOptions, compare_engines

        parity = ParityOptions(engine=str(choice), slots=NUM_SLOTS, threads=defaults.num_threads)
        broken = compare_engines(bundle, parity).breaks
        if broken:
            return f"it does not compute what its golden traces say ({broken[0]}): export it again."
        return ""
    opened = factory.engine_for(
        bundle, engine=str(choice), num_slots=1, num_threads=defaults.num_threads
    )
    with closing(opened) as engine:
        load_blanks(engine, bundle.puzzle_table[0])
        output = engine.step(1)
    values = np.concatenate([output.halt_margin_B, output.q_halt_B])
    if not np.isfinite(values).all():
        return "it computes values that are not finite: export it again."
    return ""
