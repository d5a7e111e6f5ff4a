"""Keeps one engine process running: starts it, notices its death, waits, and starts it again.

Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from hrm_edge_runtime.worker.backoff import BackOff
from hrm_edge_runtime.worker.handles import EngineHandle
from hrm_edge_runtime.worker.link import EngineLink
from hrm_edge_runtime.worker.messages import Failed, FromEngine, Ready, Stop, ToEngine

STOP_S = 5.0  # how long an engine may take to leave when asked, before it is killed

_log = logging.getLogger("hrm_edge_runtime.worker")


class EngineProcess:
    """`on_message` gets what the engine says, `on_lost` is called once for every engine that has gone.

    Readers may look at `is_ready`, `num_losses`, `last_error`, `refusal` and `backoff` at any time. An engine that
    refuses before one was ever ready is not started again: `refusal` says why. Later it may lack memory, which passes.
    """

    def __init__(
        self,
        start_engine: Callable[[], EngineHandle],
        *,
        on_message: Callable[[FromEngine], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._start_engine = start_engine
        self._on_message = on_message
        self._on_lost = on_lost
        self._handle: EngineHandle | None = None
        self._link: EngineLink | None = None
        self._ready_at_s = 0.0
        self._was_ready = False
        self.backoff = BackOff()
        self.num_losses = 0
        self.last_error: str | None = None
        self.refusal: str | None = None

    def start(self) -> None:
        self._closing = asyncio.Event()
        self._runner = asyncio.create_task(self._keep_running(), name="engine-runner")

    async def stop(self) -> None:
        """Stop the engine for good: by asking, or by killing it where it does not leave in time."""
        self._closing.set()
        if self._link is not None and self.is_ready:
            self._link.send(Stop())
            await asyncio.wait({self._runner}, timeout=STOP_S)
        self.kill()
        await asyncio.wait({self._runner}, timeout=STOP_S)

    @property
    def is_ready(self) -> bool:
        return bool(self._ready_at_s)

    @property
    def pid(self) -> int | None:
        return self._handle.pid if self._handle else None

    @property
    def link(self) -> EngineLink | None:
        """The way to the engine that is ready; what is sent over it later than its end is dropped."""
        return self._link if self.is_ready else None

    def kill(self) -> None:
        if self._handle is not None:
            self._handle.kill()

    def send(self, message: ToEngine) -> None:
        if self.link is not None:
            self.link.send(message)

    async def _keep_running(self) -> None:
        while not self._closing.is_set() and self.refusal is None:
            ready_s = 0.0
            try:
                ready_s = await self._run_engine()
            except Exception as error:  # whatever keeps an engine from starting, it is worth another try later
                _log.exception("the engine could not be started")
                self.last_error = f"the engine could not be started: {error}"
            await self._pause_after_loss(ready_s)

    async def _run_engine(self) -> float:
        """Start an engine and stay with it to its end; how long it was ready."""
        lost = asyncio.Event()
        self._handle = handle = await asyncio.to_thread(self._start_engine)
        if self._closing.is_set():
            handle.kill()
        self._link = EngineLink(handle, on_message=self._deliver, on_lost=lost.set)
        await lost.wait()
        ready_s = time.monotonic() - self._ready_at_s if self.is_ready else 0.0
        self._link, self._ready_at_s = None, 0.0
        self.num_losses += not self._closing.is_set()
        self._on_lost()
        await asyncio.to_thread(_reap, handle)
        return ready_s

    async def _pause_after_loss(self, ready_s: float) -> None:
        if self._closing.is_set() or self.refusal is not None:
            return
        delay_s = self.backoff.after(ready_s)
        _log.error("engine lost (%d times so far), starting it again in %.1f s", self.num_losses, delay_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay_s)

    def _deliver(self, message: FromEngine) -> None:
        if isinstance(message, Ready):
            self._ready_at_s = time.monotonic()
            self._was_ready = True
            _log.info("engine ready after %.1f s", message.load_s)
        elif isinstance(message, Failed):
            self.last_error = message.message
            _log.error("engine: %s", message.message)
            if message.is_refusal and not self._was_ready:
                self.refusal = message.message
        self._on_message(message)


def _reap(handle: EngineHandle) -> None:
    """Wait for an engine whose pipe has ended; one that lingers is killed."""
    if not handle.join(STOP_S):
        handle.kill()
        handle.join(STOP_S)
