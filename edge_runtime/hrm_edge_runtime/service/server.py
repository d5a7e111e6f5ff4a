"""Uvicorn, with a shutdown that keeps its promises: not ready at once, admitted work finished, exit status 0."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

import uvicorn

from hrm_edge_runtime.service.app import create_app
from hrm_edge_runtime.service.processes import EngineProcess
from hrm_edge_runtime.service.questions import ServedModel
from hrm_edge_runtime.service.supervisor import Supervisor
from hrm_edge_runtime.service.workbench import MakeWorkbench

LAST_BYTES_S = 5  # for answers that are written but not yet read by their clients


class DrainingServer(uvicorn.Server):
    """SIGTERM or Ctrl-C drains: the port stays open, and says 503, until what was admitted is answered.

    A second signal leaves at once.
    """

    def __init__(self, config: uvicorn.Config, supervisor: Supervisor, drain_s: float) -> None:
        super().__init__(config)
        self._supervisor = supervisor
        self._drain_s = drain_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by Python between two instructions of the main thread, so it only wakes the loop.

        The signal is not kept as the base class does: it would be raised again at the end, in place of exit status 0.
        """
        del sig, frame
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_leave)

    def _begin_to_leave(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self.force_exit = self.should_exit = True

    async def _drain(self) -> None:
        await self._supervisor.drain(self._drain_s)
        self.should_exit = True


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How to serve; the defaults stand in the command line."""

    host: str
    port: int
    queue_limit: int
    drain_s: float
    stall_s: float
    api_keys: frozenset[str]


def run_server(make_workbench: MakeWorkbench, models: Sequence[ServedModel], options: ServerOptions) -> None:
    """Serve models until told to stop; exits with 1 where the port cannot be had.

    Their engine process makes its own workbench, with a lane for each model.
    """
    supervisor = Supervisor(
        functools.partial(EngineProcess, make_workbench),
        {model.name: model.num_slots + options.queue_limit for model in models},
        stall_s=options.stall_s,
    )
    app = create_app(supervisor, models, api_keys=options.api_keys)
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=LAST_BYTES_S,
    )
    DrainingServer(config, supervisor, options.drain_s).run()
