"""Limits on clients' connections: how many there are, and how long each step of a client may take.

Uvicorn bounds the time between two requests (5 s), and bodies that a route reads have their own deadlines. It has no
public hook for a connection's state, so GuardedProtocol extends its private HttpToolsProtocol: pyproject.toml bounds
the version of uvicorn, and test_connections.py must pass before that bound is raised.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hrm_edge_runtime.http.errors import JSON, SAFE_HEADERS, ServiceError, as_json, no_answer

HEADER_BYTES = 16 * 1024
READ_BYTES = 4096  # at most in one turn of the event loop: no client may have more than some hundred events of it
MANY_PIECES = 1000  # of a body, from where on they must have LEAST_PIECE bytes on average: each is a call of Python
LEAST_PIECE = 16
MAX_AHEAD = 128  # requests sent before the answer to the first
HALF_CLOSED_SECONDS = 0.2  # for an answer to a client that sends no more; one that has left looks the same
HEADER_SECONDS = 10.0  # from the first byte, or the connection, to the end of the header
UNREAD_SECONDS = 10.0  # for the rest of a body that was refused: long enough for its client to see why
FETCH_SECONDS = 60.0  # for a client to take what waits for it

Reason = Literal["slow-header", "unread-body", "slow-reader", "made-room", "too-many"]


@dataclass(kw_only=True, eq=False)
class ConnectionLimits(Collector):
    """The connections of one server and their figures for `/metrics`; `idle` holds those without a request in order."""

    max_connections: int
    header_s: float = HEADER_SECONDS
    unread_s: float = UNREAD_SECONDS
    fetch_s: float = FETCH_SECONDS
    num_open: int = 0
    idle: dict["GuardedProtocol", None] = field(default_factory=dict["GuardedProtocol", None])
    dropped: Counter[Reason] = field(default_factory=Counter["Reason"])

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("hrm_connections", "Open connections.", value=self.num_open)
        dropped = CounterMetricFamily("hrm_connections_dropped", "Ended by this side, by reason.", labels=["reason"])
        for reason, count in self.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped


class SmallReads(asyncio.BufferedProtocol):
    """Hands a connection's bytes on in small portions, so that the others get their turn in between."""

    _buffer = bytearray(READ_BYTES)  # shared: it is emptied in the same turn

    def __init__(self, protocol: "GuardedProtocol") -> None:
        self._protocol = protocol
        self.connection_lost = protocol.connection_lost
        self.eof_received = protocol.waits_for_its_answer
        self.pause_writing, self.resume_writing = protocol.pause_writing, protocol.resume_writing

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(self._buffer[:nbytes]))
        if nbytes == READ_BYTES:
            self._protocol.rest_a_turn()


class GuardedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 over one connection, with a bound on headers and a deadline for the client's next step."""

    def __init__(self, *, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._expected: Reason | None = None
        self._fetching: asyncio.TimerHandle | None = None
        self._header_bytes = self._num_pieces = self._body_bytes = self._fault = 0
        self._is_body_due = False
        self._is_ignored = False  # whatever still comes from this client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_protocol(SmallReads(self))
        self._limits.num_open += 1
        if self._limits.num_open > self._limits.max_connections:
            if not self._limits.idle:
                self._limits.dropped["too-many"] += 1
                self._refuse(no_answer("too-many-connections"))
                return
            next(iter(self._limits.idle)).drop("made-room")  # that has been idle longest
        self._limits.idle[self] = None
        self._expect("slow-header", self._limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.num_open -= 1
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_ignored:
            return
        if not self._is_answering and self._expected not in ("slow-header", "unread-body"):
            self._expect("slow-header", self._limits.header_s)
        if not self._is_body_due:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > HEADER_BYTES:
            self._refuse(_bad_http(431))
        if self._is_answering:
            self._limits.idle.pop(self, None)
            self._expect_nothing()
        elif self._expected == "unread-body" and not self._is_body_due:
            self._expect("slow-header", self._limits.header_s)

    def on_headers_complete(self) -> None:
        self._fault = self._fault_of_header()
        if self._fault:
            raise ValueError(self._fault)  # ends the parsing: uvicorn calls send_400_response
        self._header_bytes = self._num_pieces = self._body_bytes = 0
        self._is_body_due = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_pieces += 1
        self._body_bytes += len(body)
        if self._num_pieces > MANY_PIECES and self._body_bytes < LEAST_PIECE * self._num_pieces:
            raise ValueError("a body in crumbs")  # as above
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_body_due = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_answering:  # the next one was sent ahead, and has begun by now
            return
        self._limits.idle[self] = None
        if self._is_body_due:
            self._expect("unread-body", self._limits.unread_s)
        else:
            self._expect("slow-reader", self._limits.fetch_s)  # uvicorn closes it sooner, but only once all is fetched

    def rest_a_turn(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def waits_for_its_answer(self) -> bool:
        """Whether a client that has stopped sending is still owed an answer; it gets one that comes soon."""
        if not self._is_answering or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.close)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._fetching = self.loop.call_later(self._limits.fetch_s, self.drop, "slow-reader")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._fetching is not None:
            self._fetching.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take, in the shape of every refusal and without repeating it."""
        del msg
        self._refuse(_bad_http(self._fault or 400))

    def drop(self, reason: Reason) -> None:
        self._leave()
        self._limits.dropped[reason] += 1
        self.transport.abort()

    def _leave(self) -> None:
        self._limits.idle.pop(self, None)
        self._expect_nothing()
        if self._fetching is not None:
            self._fetching.cancel()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # which uvicorn declares without the None
        return cycle is not None and not cycle.response_complete

    def _fault_of_header(self) -> int:
        """The status that refuses what llhttp lets pass, or 0."""
        size, num_hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value) + len(b": \r\n")
            num_hosts += name == b"host"
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                return 501
        if len(self.pipeline) >= MAX_AHEAD:
            return 400
        if size > HEADER_BYTES:
            return 431
        assert self.parser is not None  # as long as the connection lasts
        version = self.parser.get_http_version()
        is_fit = (version == "1.1" and num_hosts == 1) or (version == "1.0" and num_hosts < 2)
        return 0 if is_fit else 400

    def _refuse(self, refusal: ServiceError) -> None:
        if self._is_ignored:
            return
        self._is_ignored = True
        if self._is_body_due and not self._is_answering:  # it was answered, and that must still be fetched
            return
        if self._is_answering and self.cycle.response_started:
            self.transport.abort()
            return
        body = as_json(refusal.body()).encode()
        own = {"content-type": JSON, "content-length": len(body), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode() for name, value in {**own, **refusal.headers}.items()]
        lines += [b"%s: %s\r\n" % header for header in SAFE_HEADERS]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body]))
        self.transport.close()
        self._expect("slow-reader", self._limits.unread_s)

    def _expect(self, reason: Reason, within_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._expected = reason
        self._deadline = self.loop.call_later(within_s, self.drop, reason)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = self._expected = None


def _bad_http(status: int) -> ServiceError:
    return ServiceError(status, "bad-http", "this is no HTTP that the server reads", "send HTTP/1.1")
