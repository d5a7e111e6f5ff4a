"""Proxies with their shipped configurations in front of servers of a test."""

import contextlib
import os
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from cli_tools import tool
from files import ROOT
from service_tools import Server, free_port, wait_for

FOLDER = ROOT / "docker"
CONFIGURATION = FOLDER / "haproxy.cfg"
COMMANDS = {  # of a proxy for one board, by the name of its configuration
    "nginx.conf": ["nginx", "-p", "FOLDER", "-e", "stderr", "-g", "daemon off; pid pid;", "-c"],
    "Caddyfile": ["caddy", "run", "--adapter", "caddyfile", "--config"],
}
BELOW = {  # what puts the board of a configuration under a path
    "nginx.conf": {"location / {": "location /hrm/ {", "http://board;": "http://board/;"},
    "Caddyfile": {"reverse_proxy": "handle_path /hrm/* {\nreverse_proxy", "\n}\n": "\n}\n}\n"},
}
SRV, ADDRESS = 33, 1


@contextlib.contextmanager
def proxy(
    folder: Path, boards: Sequence[Server], secret: str, limit: int = 50_000
) -> Iterator[str]:
    """Run HAProxy over these boards, and yield its address when a board is ready behind it.

    Boards that are added to the sequence join. `limit` is the number of requests that a client may
    send in ten seconds.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    configuration = folder / "haproxy.cfg"
    command = [tool("haproxy"), "-db", "-f", str(configuration)]
    names = {"HRM_FLEET_BOARDS": "_http._tcp.boards.test", "HRM_FLEET_KEY": secret}
    with name_server(boards) as name_port:
        own = {
            "bind :8000": f"bind 127.0.0.1:{port}",
            "parse-resolv-conf": f"nameserver test 127.0.0.1:{name_port}",
            "gt 50000": f"gt {limit}",
        }
        configuration.write_text(replaced(CONFIGURATION, own))
        with proxy_process(command, url, **names):
            yield url


def replaced(file: Path, own: dict[str, str]) -> str:
    """Return a shipped configuration with a test's own addresses."""
    text = file.read_text()
    for old, new in own.items():
        assert old in text
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def name_server(boards: Sequence[Server]) -> Iterator[int]:
    """Run a DNS server that knows the ports of these boards (SRV), and yield its port."""

    class Names(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, socket = self.request
            socket.sendto(_named(question, boards), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Names) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _named(message: bytes, boards: Sequence[Server]) -> bytes:
    """Answer a message of DNS with one question (RFC 1035, RFC 2782)."""
    end = message.index(0, 12) + 5  # the name's last byte, type and class
    (kind,) = struct.unpack(">H", message[end - 4 : end - 2])
    data = []
    if kind == SRV:
        for number, board in enumerate(boards, start=1):
            target = b"\6board%d\4test\0" % number
            data.append(struct.pack(">HHH", 1, 1, board.port) + target)
    elif kind == ADDRESS:
        data.append(bytes([127, 0, 0, 1]))
    answer = message[:2] + struct.pack(">5H", 0x8580, 1, len(data), 0, 0) + message[12:end]
    for one in data:
        answer += struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(one)) + one
    return answer


@contextlib.contextmanager
def proxy_process(command: list[str], url: str, **environment: str) -> Iterator[None]:
    """Run a proxy; begins when a server behind it is ready."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, **environment}, **quiet) as process:
        try:
            wait_for(lambda: _answers(f"{url}/readyz"))
            yield
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        # a key of its own, so that the tests' requests alone count against their limits
        return httpx.get(url, headers={"x-api-key": "waiting"}).status_code == 200
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def proxied(name: str, board: Server, folder: Path, *, is_below: bool = False) -> Iterator[str]:
    """Run a proxy, and yield the board's address behind it, at the root or below /hrm/."""
    if name == CONFIGURATION.name:
        with proxy(folder, [board], "none") as url:
            yield url
        return
    program, *options = COMMANDS[name]
    port = free_port()
    changes = {":8000": f":{board.port}", "8080": str(port)}
    url = f"http://127.0.0.1:{port}"
    if is_below:
        changes |= BELOW[name]
        url += "/hrm"
    (folder / name).write_text(replaced(FOLDER / name, changes))
    arguments = [option.replace("FOLDER", str(folder)) for option in options]
    command = [tool(program), *arguments, str(folder / name)]
    with proxy_process(command, url, HOME=str(folder), XDG_DATA_HOME=str(folder)):
        yield url
