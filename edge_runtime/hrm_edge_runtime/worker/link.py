"""Two threads that carry messages between the event loop and one engine, so that the loop never waits on a pipe.

Writing needs its own thread too: an engine in a long segment does not read, and a full pipe would stop every request.
Waking a thread costs more than a message, so what one turn of the event loop sends goes in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from hrm_edge_runtime.worker.handles import EngineHandle
from hrm_edge_runtime.worker.messages import FromEngine, ToEngine

_log = logging.getLogger("hrm_edge_runtime.link")


class EngineLink:
    """One engine's two directions. Both callbacks run in the event loop; `on_lost` comes once, and last."""

    def __init__(
        self,
        handle: EngineHandle,
        *,
        on_message: Callable[[FromEngine], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connection = handle.connection
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_lost = on_lost
        self._unsent: list[ToEngine] = []
        self._outbox: queue.SimpleQueue[tuple[ToEngine, ...] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()

    def send(self, message: ToEngine) -> None:
        """Put a message on its way; one to an engine that has gone is dropped."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        messages, self._unsent = tuple(self._unsent), []
        self._outbox.put(messages)

    def _read(self) -> None:
        try:
            while True:
                self._call(self._on_message, self._connection.recv())
        except (EOFError, OSError):
            pass  # the engine has gone, perhaps in the middle of a message
        except Exception:  # bytes that are no message can raise anything; an engine that sends them is as good as gone
            _log.exception("the engine sends what is no message")
        self._call(self._on_lost)
        self._outbox.put(None)
        self._writer.join()  # closing while it still writes could hand its descriptor to somebody else's file
        self._connection.close()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reading thread finds out the same and tells the loop
            while (messages := self._outbox.get()) is not None:
                self._connection.send(messages)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, *arguments)
