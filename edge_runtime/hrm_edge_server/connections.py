"""Limits on connections: how many there are, what they hold, how long each step may take.

Uvicorn's h11 protocol keeps what a client sends ahead as unparsed bytes. `body.ClientBytes` bounds
what h11 parses. `GuardedProtocol` knows from h11's states what the client owes, and for how long.
Uvicorn has no public hook for either: pyproject.toml bounds its version, and test_connections.py
must pass before that bound is raised.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import h11
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from hrm_edge_runtime.api.errors import JSON, SAFE_HEADERS, ServiceError, as_json, no_answer
from hrm_edge_server.body import EVENTS_A_TURN, MAX_BODY_BYTES, ClientBytes
from hrm_edge_server.growing import CUT

READ_BYTES = 4096  # per turn of the event loop
MAX_AHEAD_BYTES = 16 * 1024  # bytes of requests before the first is answered
MAX_HELD_BYTES = 64 << 20  # of requests, of all connections together
UNSENT_BYTES = 16 * 1024  # of an answer; the next piece waits until the client has read all
HALF_CLOSED_SECONDS = 0.2  # time to answer a client that stopped sending and may have left
HEADER_SECONDS = 10.0  # from the first byte, or from the connection, to the end of the header
UNREAD_SECONDS = 10.0  # time to read on behind an answer, so that its client sees it
FETCH_SECONDS = 60.0  # time for a client to read what the server wrote

Owed = Literal["slow-header", "unread-body", "slow-reader"]
Reason = Owed | Literal["made-room", "too-many"]


@dataclass(kw_only=True, eq=False)
class ConnectionLimits(Collector):
    """The connections of one server and their figures for `/metrics`.

    `idle` holds the connections without a request, the longest idle first.
    """

    max_connections: int
    header_s: float = HEADER_SECONDS
    unread_s: float = UNREAD_SECONDS
    fetch_s: float = FETCH_SECONDS
    max_held_bytes: int = MAX_HELD_BYTES
    held_bytes: int = 0
    connections: set["GuardedProtocol"] = field(default_factory=set["GuardedProtocol"])
    idle: dict["GuardedProtocol", None] = field(default_factory=dict["GuardedProtocol", None])
    dropped: Counter[Reason] = field(default_factory=Counter["Reason"])

    def drop_late(self) -> None:
        """Drop the connections whose clients let a deadline pass; call it about every second."""
        limits: dict[Owed, float] = {
            "slow-header": self.header_s,
            "unread-body": self.unread_s,
            "slow-reader": self.fetch_s,
        }
        now_s = time.monotonic()
        for connection in tuple(self.connections):
            owed = connection.owed(now_s)
            if owed is not None and now_s - connection.owed_since_s > limits[owed]:
                connection.drop(owed)

    def hold(self, connection: "GuardedProtocol", num_bytes: int) -> None:
        """Note what a connection holds. Beyond the budget, the one that holds the most must go."""
        self.held_bytes += num_bytes - connection.held_bytes
        connection.held_bytes = num_bytes
        if self.held_bytes > self.max_held_bytes:
            largest = max(self.connections, key=lambda each: each.held_bytes)
            largest.make_room()

    def collect(self) -> Iterable[Metric]:
        num_open = len(self.connections)
        yield GaugeMetricFamily("hrm_connections", "Open connections.", value=num_open)
        yield GaugeMetricFamily(
            "hrm_connections_held_bytes",
            "Bytes of requests that connections hold.",
            value=self.held_bytes,
        )
        dropped = CounterMetricFamily(
            "hrm_connections_dropped", "Ended by this side, by reason.", labels=["reason"]
        )
        for reason, count in self.dropped.items():
            dropped.add_metric([reason], count)
        yield dropped


class LingeringTransport:
    """A transport whose `close` lets a client that still sends read its answer, as nginx does.

    Closing a socket with unread bytes resets the connection, and the client may lose the answer.
    So `close` ends only the sending; `ConnectionLimits.unread_s` limits how long the client may
    take to end the connection. TLS has no half-closed connections: it is closed at once.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "GuardedProtocol") -> None:
        self._transport = transport
        self._protocol = protocol
        self._is_lingering = False
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._protocol.may_send_on or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._is_lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()

    def close_at_once(self) -> None:
        self._transport.close()


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


class GuardedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 within limits. It reads on during an answer, to see the client leave."""

    conn: ClientBytes
    transport: LingeringTransport  # type: ignore[assignment]

    def __init__(self, *, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.conn = ClientBytes()
        self.held_bytes = 0
        self.owed_since_s = time.monotonic()
        self._owed: Owed | None = "slow-header"
        self._limits = limits
        self._is_ignored = False  # true: drop all further bytes of this client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(Any, LingeringTransport(transport, self)))
        transport.set_protocol(SmallReads(self))
        transport.set_write_buffer_limits(high=UNSENT_BYTES, low=0)
        self._limits.connections.add(self)
        if len(self._limits.connections) > self._limits.max_connections:
            if not self._limits.idle:
                self.make_room()
                return
            next(iter(self._limits.idle)).drop("made-room")  # drops the longest-idle one
        self._limits.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.hold(self, 0)
        self._limits.connections.discard(self)
        self._limits.idle.pop(self, None)
        # uvicorn leaves the timer of a reset connection, which keeps all of it for another minute
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def may_send_on(self) -> bool:
        """Whether the client has not sent its whole request, or sent more."""
        is_whole = self.conn.their_state not in (h11.SEND_BODY, h11.ERROR)
        has_sent_more = len(self.conn.trailing_data[0]) > 0
        return self._is_ignored or not is_whole or has_sent_more

    def owed(self, now_s: float) -> Owed | None:
        """The step that the client must do next, since `owed_since_s`."""
        owed: Owed | None = None
        if self.transport.get_write_buffer_size():
            owed = "slow-reader"
        elif self.transport.is_closing():
            owed = "unread-body"
        elif self._is_answering:
            owed = None
        elif self.conn.their_state is h11.SEND_BODY:
            owed = "unread-body"
        elif self.timeout_keep_alive_task is None:  # it waits for no new request
            owed = "slow-header"
        if owed != self._owed:
            self._owed = owed
            self.owed_since_s = now_s
        return owed

    def data_received(self, data: bytes) -> None:
        is_over = self._is_ignored or self.transport.is_closing()
        if not is_over and self.conn.their_state is not h11.MUST_CLOSE:
            super().data_received(data)

    def handle_events(self) -> None:
        self.conn.events_left = EVENTS_A_TURN
        super().handle_events()
        if not self.conn.events_left:
            self.rest_a_turn()
        ahead_bytes = len(self.conn.trailing_data[0])
        self._limits.hold(self, ahead_bytes + min(self.conn.body_bytes, MAX_BODY_BYTES))
        if self._is_ignored or not self._is_answering:
            return
        self._limits.idle.pop(self, None)
        self.scope["extensions"] = cast(Any, {CUT: self.cut})
        if self.conn.their_http_version != b"1.0":  # h11 ends such a connection, and ab would not
            kept = (b"keep-alive", b"timeout=%d" % self.timeout_keep_alive)
            self.cycle.default_headers = [*self.server_state.default_headers, kept]
        if self.conn.their_state is h11.SEND_BODY:
            return
        if ahead_bytes > MAX_AHEAD_BYTES:
            self._is_ignored = True
            self.cycle.keep_alive = False
        self.flow.resume_reading()

    def rest_a_turn(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.transport.is_closing():
            return
        if not self.conn.events_left:
            self.handle_events()
        if self.conn.events_left and not self.flow.read_paused:
            self.transport.resume_reading()

    def on_response_complete(self) -> None:
        self._owed = None  # its next step begins now
        self._limits.idle[self] = None
        self.conn.forget_body()
        self._limits.hold(self, 0)  # until the events behind it are handled
        super().on_response_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._owed = None  # the client reads

    def waits_for_its_answer(self) -> bool:
        """Keep the connection for a moment if a client that stopped sending awaits an answer."""
        if self.transport.is_closing() or not self._is_answering or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.close_at_once)
        return True

    def cut(self) -> None:
        """End the connection after what was written, without the end of the answer."""
        self._is_ignored = True
        self.cycle.disconnected = True
        self._leave()

    def _leave(self) -> None:
        self._limits.idle[self] = None  # it makes room if others come
        self._limits.hold(self, 0)
        self.transport.close()

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()
        if self.transport.is_closing():
            self.transport.close_at_once()

    def make_room(self) -> None:
        self._limits.dropped["too-many"] += 1
        self._limits.hold(self, 0)
        self._refuse(no_answer("too-many-connections"))
        self.transport.close_at_once()

    def drop(self, reason: Reason) -> None:
        self._limits.idle.pop(self, None)
        self._limits.dropped[reason] += 1
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with h11's reason, without the bytes that it quotes."""
        del msg
        status = self.conn.fault.error_status_hint
        cause, _, _ = str(self.conn.fault).partition(": bytearray")
        message = f"the server cannot read this as HTTP ({cause})"
        remedy = "send HTTP/1.1"
        if status == 431:
            remedy = "send fewer and shorter headers, such as cookies"
        self._refuse(ServiceError(status, "bad-http", message, remedy))

    def _refuse(self, refusal: ServiceError) -> None:
        """Refuse the request and all that follows it, unless its answer has begun."""
        self._is_ignored = True
        if self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            return  # the client must still fetch its answer
        if self.cycle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state is h11.SEND_BODY:
            self.transport.abort()
            return
        body = f"{as_json(refusal.body())}\n".encode()
        own = {"content-type": JSON, "content-length": len(body), "connection": "close"}
        status = refusal.status
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, STATUS_PHRASES[status])]
        for name, value in {**own, **refusal.headers}.items():
            lines.append(f"{name}: {value}\r\n".encode())
        lines += [b"%s: %s\r\n" % header for header in SAFE_HEADERS]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self._leave()
