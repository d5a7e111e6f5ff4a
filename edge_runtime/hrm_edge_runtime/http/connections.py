"""Limits on connections: how many there are, and how long each step of a client may take.

Uvicorn bounds the time between two requests (5 s), and bodies that a route reads have their own
deadlines. Uvicorn has no public hook for a connection's state, so GuardedProtocol extends its
private HttpToolsProtocol: pyproject.toml bounds the version of uvicorn, and test_connections.py
must pass before that bound is raised.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from hrm_edge_runtime.api.errors import JSON, SAFE_HEADERS, ServiceError, as_json, no_answer

HEADER_BYTES = 16 * 1024
READ_BYTES = 4096  # per turn of the event loop: bounds the parser events of one client
# Each piece of a body costs a Python call. A body of more pieces must average LEAST_PIECE bytes.
MANY_PIECES = 1000
LEAST_PIECE = 16  # bytes
MAX_AHEAD_BYTES = 16 * 1024  # bytes of requests before the first is answered
OF_UPGRADE = (b"upgrade", b"http2-settings")  # removed as headers and from Connection's list
HALF_CLOSED_SECONDS = 0.2  # time to answer a client that stopped sending and may have left
HEADER_SECONDS = 10.0  # from the first byte, or from the connection, to the end of the header
UNREAD_SECONDS = 10.0  # time to read a rejected body, so that its client sees why
FETCH_SECONDS = 60.0  # time for a client to read what the server wrote

Reason = Literal["slow-header", "unread-body", "slow-reader", "made-room", "too-many"]


@dataclass(kw_only=True, eq=False)
class ConnectionLimits(Collector):
    """The connections of one server and their figures for `/metrics`.

    `idle` holds the connections without a request, the longest idle first.
    """

    max_connections: int
    header_s: float = HEADER_SECONDS
    unread_s: float = UNREAD_SECONDS
    fetch_s: float = FETCH_SECONDS
    num_open: int = 0
    idle: dict["GuardedProtocol", None] = field(default_factory=dict["GuardedProtocol", None])
    dropped: Counter[Reason] = field(default_factory=Counter["Reason"])

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("hrm_connections", "Open connections.", value=self.num_open)
        dropped = CounterMetricFamily(
            "hrm_connections_dropped", "Ended by this side, by reason.", labels=["reason"]
        )
        for reason, count in self.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped


class SmallReads(asyncio.BufferedProtocol):
    """Passes a connection's bytes on in small portions; other connections get turns between."""

    _buffer = bytearray(READ_BYTES)  # shared: it is emptied in the same turn

    def __init__(self, protocol: "GuardedProtocol") -> None:
        self._protocol = protocol
        self.connection_lost = protocol.connection_lost
        self.eof_received = protocol.waits_for_its_answer
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(self._buffer[:nbytes]))
        if nbytes == READ_BYTES:
            self._protocol.rest_a_turn()


class GuardedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 with limits on headers and a deadline for the client's next step.

    Uvicorn's `cycle` is the request that arrived last. `_answering` is the one whose answer is not
    complete, or None. They differ if a client sends its next request before it has the last answer.
    """

    def __init__(self, *, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._expected: Reason | None = None
        self._fetching: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        self._header_bytes = 0  # headers, chunk sizes and trailers since the last piece of a body
        self._ahead_bytes = 0
        self._num_pieces = 0
        self._body_bytes = 0
        self._fault = 0
        self._is_body_due = False
        self._is_ignored = False  # true: drop all further bytes of this client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_protocol(SmallReads(self))
        self._limits.num_open += 1
        if self._limits.num_open > self._limits.max_connections:
            if not self._limits.idle:
                self._limits.dropped["too-many"] += 1
                self._refuse(no_answer("too-many-connections"))
                return
            next(iter(self._limits.idle)).drop("made-room")  # drops the longest-idle one
        self._limits.idle[self] = None
        self._expect("slow-header", self._limits.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.num_open -= 1
        self._leave()
        if self._answering is not None:
            self._cut_off(self._answering)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_ignored:
            return
        if self._answering is None and self._expected not in ("slow-header", "unread-body"):
            self._expect("slow-header", self._limits.header_s)
        self._header_bytes += len(data)
        self._parse(data)
        if self._header_bytes > HEADER_BYTES:
            self._refuse(_bad_http(431))
        if self._answering is not None:
            self._limits.idle.pop(self, None)
            self._expect_nothing()
            if self._is_ahead:
                self._ahead_bytes += len(data)
                if self._ahead_bytes > MAX_AHEAD_BYTES:
                    self._answer_no_more()
        elif self._expected == "unread-body" and not self._is_body_due:
            self._expect("slow-header", self._limits.header_s)

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        assert self.parser is not None  # it lives as long as the connection
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse(self._without_upgrade() + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(_bad_http(self._fault or 400))

    def _without_upgrade(self) -> bytes:
        """Parse the last header again, as if its client had not offered another protocol.

        After such an offer the parser skips the body and would read it as the next request.
        """
        assert self.parser is not None
        method = self.parser.get_method()
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(
                    word for word in value.split(b",") if word.strip().lower() not in OF_UPGRADE
                )
            if name not in OF_UPGRADE:
                lines.append(b"%s: %s" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        self._fault = self._fault_of_header()
        if self._fault:
            raise ValueError(self._fault)  # ends the parsing
        assert self.parser is not None
        if self.parser.should_upgrade():
            return  # `_parse` feeds this header again
        super().on_headers_complete()
        self.headers = []  # for trailers, which the request does not get
        self._header_bytes = 0
        self._num_pieces = 0
        self._body_bytes = 0
        self._is_body_due = True
        if self._answering is None:
            self._answering = self.cycle
        else:
            # uvicorn stops reading here, and so would not see the client leave.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._num_pieces += 1
        self._body_bytes += len(body)
        self._header_bytes = 0
        if self._num_pieces > MANY_PIECES and self._body_bytes < LEAST_PIECE * self._num_pieces:
            raise ValueError("a body in crumbs")  # ends the parsing
        super().on_body(body)

    def on_message_complete(self) -> None:
        # A header that offers another protocol completes a message too, but no body is due then.
        if self._is_body_due:
            self._is_body_due = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        self._ahead_bytes = 0
        super().on_response_complete()
        if self._answering is not None:
            return
        self._limits.idle[self] = None
        if self._is_body_due:
            self._expect("unread-body", self._limits.unread_s)
        else:
            # uvicorn closes the connection sooner, but only after the client has fetched everything
            self._expect("slow-reader", self._limits.fetch_s)

    def rest_a_turn(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def waits_for_its_answer(self) -> bool:
        """Keep the connection for a moment if a client that stopped sending awaits an answer."""
        if self._answering is None or self.scheme == "https":
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
    def _is_ahead(self) -> bool:
        """Whether the next bytes come after the request that is being answered."""
        if self._answering is None:
            return False
        return self.cycle is not self._answering or not self._is_body_due

    def _answer_no_more(self) -> None:
        """End the connection after the answer in progress; drop what came after its request."""
        assert self._answering is not None
        self._is_ignored = True
        self.pipeline.clear()
        self.cycle = self._answering
        self.cycle.keep_alive = False

    @staticmethod
    def _cut_off(cycle: RequestResponseCycle) -> None:
        """Report to the application that the client of a request has left."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _fault_of_header(self) -> int:
        """The error status of a request that llhttp accepts but we reject; 0 if it is valid."""
        size = len(self.url)
        num_hosts = 0
        for name, value in self.headers:
            size += len(name) + len(value) + len(b": \r\n")
            if name == b"host":
                num_hosts += 1
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                return 501
        if size > HEADER_BYTES:
            return 431
        assert self.parser is not None
        if self.parser.get_method() == b"CONNECT":
            return 501
        version = self.parser.get_http_version()
        is_fit = (version == "1.1" and num_hosts == 1) or (version == "1.0" and num_hosts < 2)
        return 0 if is_fit else 400

    def _refuse(self, refusal: ServiceError) -> None:
        """Answer bytes that are not a request; stay silent while another answer is on its way."""
        if self._is_ignored:
            return
        self._is_ignored = True
        if self._is_ahead:
            self._answer_no_more()
            return
        if self._answering is not None:
            self._refuse_body(self._answering, refusal)
        elif not self._is_body_due:  # otherwise the client must still fetch its answer
            self._write_refusal(refusal)

    def _refuse_body(self, cycle: RequestResponseCycle, refusal: ServiceError) -> None:
        """Refuse the rest of a body that is being read."""
        self._cut_off(cycle)
        if cycle.response_started:
            self.transport.abort()
        else:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: ServiceError) -> None:
        body = f"{as_json(refusal.body())}\n".encode()
        own = {"content-type": JSON, "content-length": len(body), "connection": "close"}
        lines = [
            f"{name}: {value}\r\n".encode() for name, value in {**own, **refusal.headers}.items()
        ]
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
            self._deadline = None
            self._expected = None


def _bad_http(status: int) -> ServiceError:
    return ServiceError(status, "bad-http", "the server cannot read this as HTTP", "send HTTP/1.1")
