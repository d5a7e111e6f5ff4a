"""Keeps one engine process running: starts it, exchanges messages, and restarts it when it dies."""

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable

from hrm_edge_runtime.contract.logs import LogForm
from hrm_edge_runtime.engines.trt.causes import describe_status
from hrm_edge_runtime.worker import lanes, loop, messages
from hrm_host import system

# Time to open and warm up all models, after any build: large engines on an SD card take minutes.
START_S = 600.0
START_PIECES = 100  # parts of the wait START_S; a pause of this process costs one part at most
LATE_PIECES = 5  # parts after which the log says that the start takes long: 30 s
STOP_S = 5.0  # an engine that has not stopped after this time is killed
FIRST_BACKOFF_S = 0.1
BACKOFF_CAP_S = 30.0
HEALTHY_S = 10.0  # an engine that was ready this long counts as able to run

_log = logging.getLogger("hrm_edge_runtime.worker")


class SpawnedEngine:
    """The engine in a process of its own: a crash or a stuck driver takes nothing else down.

    It is spawned, never forked: a forked child of a process that has loaded ONNX Runtime can hang.
    Signals reach every process of the group, but only the HTTP process may act on them (it drains).
    So the engine starts with them blocked.
    """

    def __init__(self, make_lanes: lanes.MakeLanes, log: LogForm) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=loop.process_main, args=(make_lanes, theirs, log), name="hrm-engine"
        )
        try:
            with system.signals_blocked():
                self._process.start()
        finally:
            theirs.close()  # otherwise our end would not see the engine die
        self.pid = self._process.pid
        # multiprocessing waits for its children at exit, and this one ignores SIGTERM
        atexit.register(self.kill)

    def kill(self) -> None:
        self._process.kill()
        atexit.unregister(self.kill)

    def join(self, timeout_s: float) -> int | None:
        """Its status, negative for a signal; None if it still runs after `timeout_s`."""
        self._process.join(timeout_s)
        status = self._process.exitcode
        if status is not None:
            atexit.unregister(self.kill)
        return status


class EngineLink:
    """Two threads that carry messages to and from an engine, so that the event loop never blocks.

    Messages that wait are sent together. Both callbacks run in the event loop. `on_lost` is called
    once, after all other calls.
    """

    def __init__(
        self,
        handle: SpawnedEngine,
        *,
        on_message: Callable[[messages.FromEngine], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = handle.connection
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_lost = on_lost
        self._outbox: queue.SimpleQueue[messages.ToEngine | None] = queue.SimpleQueue()
        self.send: Callable[[messages.ToEngine], None] = self._outbox.put
        """Sends a message; it is dropped if the engine has ended."""
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                self._loop.call_soon_threadsafe(self._on_message, message)
        except (EOFError, OSError):
            pass  # the engine has ended, perhaps in the middle of a message
        except Exception:  # bytes that are not a message can raise anything; such an engine is lost
            if not self._loop.is_closed():  # a closed event loop takes no message
                _log.exception("the engine sent bytes that are not a message")
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            self._loop.call_soon_threadsafe(self._on_lost)
        self._outbox.put(None)
        self._writer.join()  # until the thread ends, another file could get the closed descriptor
        self._connection.close()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reading thread sees the same error and reports it
            while True:
                unsent = [self._outbox.get()]
                while not self._outbox.empty():
                    unsent.append(self._outbox.get())
                if None in unsent:  # the engine has ended
                    return
                self._connection.send(unsent)


class EngineProcess:
    """The engine, restarted whenever it is lost. Everything here runs in the event loop.

    It moves messages and does not read them: its owner calls `note_ready` and `note_failure`.
    `on_lost` is called once for every engine that ends. `link` is set while one is ready. If the
    first engine refuses to start, it is not restarted and `refusal` holds its reason. A later
    refusal may be a lack of memory, which passes.
    """

    def __init__(
        self,
        start_engine: Callable[[], SpawnedEngine],
        *,
        on_message: Callable[[messages.FromEngine], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._start_engine = start_engine
        self._on_message = on_message
        self._on_lost = on_lost
        self._handle: SpawnedEngine | None = None
        self._link: EngineLink | None = None  # also while the engine starts
        self._ready_at_s: float | None = None
        self._was_ready = False
        self._is_killed = False
        self._end = "did not start"  # how the last engine ended
        self.link: EngineLink | None = None
        self.num_losses = 0
        self.losses_in_a_row = 0
        self.retry_after_s = 0.0
        self.last_error: str | None = None
        self.refusal: str | None = None

    @property
    def pid(self) -> int | None:
        return self._handle.pid if self._handle else None

    def start(self) -> None:
        self._closing = asyncio.Event()
        self._runner = asyncio.create_task(self._keep_running(), name="engine-runner")

    async def stop(self) -> None:
        self._closing.set()
        if self.link is not None:
            self.link.send(messages.Stop())
            await asyncio.wait({self._runner}, timeout=STOP_S)
        self.kill()
        await asyncio.wait({self._runner}, timeout=STOP_S)

    def kill(self) -> None:
        if self._handle is not None:
            self._is_killed = True
            self._handle.kill()

    def send(self, message: messages.ToEngine) -> None:
        if self.link is not None:
            self.link.send(message)

    def back_off(self, ready_s: float) -> float:
        """The wait before a restart, doubled with every loss in a row, up to a cap.

        `ready_s` is how long the lost engine was ready, 0 if never.
        """
        if ready_s > HEALTHY_S:
            self.losses_in_a_row = 0
        self.losses_in_a_row += 1
        doubled_s = FIRST_BACKOFF_S * 2 ** (self.losses_in_a_row - 1)
        self.retry_after_s = min(BACKOFF_CAP_S, doubled_s)
        return self.retry_after_s

    async def _keep_running(self) -> None:
        while not self._closing.is_set() and self.refusal is None:
            ready_s = 0.0
            try:
                ready_s = await self._run_engine()
            except Exception as error:  # whatever prevents a start may pass
                self._note_failed_start(error)
            if self._closing.is_set() or self.refusal is not None:
                return
            delay_s = self.back_off(ready_s)
            _log.error(
                "engine lost: it %s (%d times so far), starting it again in %.1f s",
                self._end,
                self.num_losses,
                delay_s,
            )
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), delay_s)

    def _note_failed_start(self, error: Exception) -> None:
        self.last_error = f"the engine could not be started: {error}"
        if self._closing.is_set():  # closing interrupts a build, which is no failure
            return
        if isinstance(error, ValueError) and not self._was_ready:
            self.refusal = str(error)
            return
        remedy = system.remedy_at_limit(error)
        if remedy is not None:
            _log.error("%s; %s", self.last_error, remedy)
        else:
            _log.exception("the engine could not be started")

    async def _run_engine(self) -> float:
        """Run an engine until it is lost; returns how long it was ready."""
        lost = asyncio.Event()
        self._end = "did not start"
        handle = await asyncio.to_thread(self._start_engine)
        self._is_killed = False
        self._handle = handle
        if self._closing.is_set():
            handle.kill()
        try:
            self._link = EngineLink(handle, on_message=self._on_message, on_lost=lost.set)
        except RuntimeError:  # without threads nobody would hear this engine
            handle.kill()
            raise
        self._hang = asyncio.create_task(self._give_up_start())
        await lost.wait()
        self._hang.cancel()
        ready_s = 0.0
        if self._ready_at_s is not None:
            ready_s = time.monotonic() - self._ready_at_s
        self.link = None
        self._link = None
        self._ready_at_s = None
        if not self._closing.is_set():
            self.num_losses += 1
        self._on_lost()
        status = await asyncio.to_thread(handle.join, STOP_S)
        if status is None:  # its pipe has ended, but the process lingers
            self.kill()
            await asyncio.to_thread(handle.join, STOP_S)
        self._note_end(status)
        return ready_s

    def _note_end(self, status: int | None) -> None:
        """Keep how the engine ended; it cannot report a signal that ends it itself."""
        if self._is_killed or status is None:
            self._end = "was killed by this server"
            return
        self._end = describe_status(status)
        if status < 0:
            self.last_error = f"the engine {self._end}"

    async def _give_up_start(self) -> None:
        """Kill an engine that does not get ready in time.

        It waits in pieces: a pause of this process (docker pause, a stopped machine) costs one at
        most.
        """
        piece_s = START_S / START_PIECES
        for piece in range(START_PIECES):
            if piece == LATE_PIECES:
                _log.warning("the engine has been opening its models for %.0f s", piece * piece_s)
            await asyncio.sleep(piece_s)
        self.last_error = f"it did not open its models within {START_S:g} s, so it was killed"
        _log.error("engine: %s", self.last_error)
        self.kill()

    def note_ready(self, load_s: float) -> None:
        """The engine has opened its models."""
        self._hang.cancel()
        self.link = self._link
        self._ready_at_s = time.monotonic()
        self._was_ready = True
        _log.info("engine ready after %.1f s", load_s)

    def note_failure(self, problem: str, *, is_refusal: bool) -> None:
        """The engine ends with a problem, or refuses to start."""
        self.last_error = problem
        _log.error("engine: %s", problem)
        if is_refusal and not self._was_ready:
            self.refusal = problem
