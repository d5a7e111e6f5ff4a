"""Which site a request comes from, and under which name it calls this server.

Browsers name the page's origin in every request that changes something; programs do not. A page of
another origin could otherwise use the key that its reader's browser keeps.

Without keys a stranger could point a name of his own at this address, and a page under that name
would count as the server's own (DNS rebinding). So the name in the Host header must be an address,
a private name, or a name of `--allow-host`.
"""

import functools
import re
from collections.abc import Iterable, Mapping

from hrm_edge_runtime.api.errors import ServiceError

PRIVATE_ENDINGS = (
    ".local",
    ".localhost",
    ".localdomain",
    ".internal",
    ".lan",
    ".home.arpa",
    ".svc",
    ".test",
)
"""Nobody can register a name below them. Other names come from `--allow-host`: a list of public
suffixes or a search list of DHCP would admit names that a stranger can register."""
LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[::1\]")

FOREIGN_PAGE = ServiceError(
    403,
    "foreign-page",
    "a page of another origin sent this request",
    "open this server's own page; a proxy in front of it must keep the name in the address "
    "(nginx: proxy_set_header Host $http_host), or start the server with --cors ORIGIN",
)


class Sites:
    """The names and the origins that may use the server; `hosts` is None if it has keys."""

    def __init__(self, hosts: Iterable[str] | None, origins: Iterable[str]) -> None:
        self._hosts: frozenset[str] | None = None
        if hosts is not None:
            self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._origins = frozenset(origin.encode() for origin in origins)

    def refusal(self, method: str, headers: Mapping[bytes, bytes]) -> ServiceError | None:
        """The refusal of a request from another site or to another name; None if it may enter."""
        origin = headers.get(b"origin")
        if method not in ("GET", "HEAD") and origin is not None and self._is_foreign(headers):
            return FOREIGN_PAGE
        if self._hosts is None:
            return None
        name = public_name_in(headers.get(b"host", b""))
        if name is None or name in self._hosts:
            return None
        return _foreign_host(name)

    def _is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of another origin sends the request.

        The browser's own word counts if it gives one. It knows the address bar, while a proxy may
        have replaced the Host header.
        """
        origin = headers[b"origin"]
        if origin in self._origins:
            return False
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            # its own page, and an address that a person typed
            return site not in (b"same-origin", b"none")
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return not _is_same(origin.decode("latin-1").lower(), host)


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin has the name and port of a Host header, or may have had before a proxy.

    A Host header without a port may have lost it in a proxy. On loopback both sides are this
    machine, whatever a proxy on it wrote.
    """
    _, _, authority = origin.partition("://")
    if authority == host:
        return True
    name = _without_port(authority)
    own_name = _without_port(host)
    if LOOPBACK.fullmatch(name) and LOOPBACK.fullmatch(own_name):
        return True
    return own_name == host and name == own_name


def _without_port(authority: str) -> str:
    return re.sub(r":\d*$", "", authority)


@functools.lru_cache(maxsize=256)
def public_name_in(host: bytes) -> str | None:
    """The name in a Host header, if it is a public name; None for addresses and private names."""
    name = _without_port(host.decode("latin-1").lower())
    if re.fullmatch(r"\[[^\]]*\]|[0-9.]*", name):
        return None  # an address
    name = name.removesuffix(".")
    if "." not in name or name.endswith(PRIVATE_ENDINGS):
        return None
    return name


def _foreign_host(name: str) -> ServiceError:
    is_plain = re.fullmatch(r"[a-z0-9.-]{1,253}", name) is not None
    option = f"--allow-host {name}" if is_plain else "--allow-host NAME"
    return ServiceError(
        403,
        "foreign-host",
        "this server has no keys, and the request names it by a public name that it does not know",
        f"use its address, or start it with {option} or with --keys",
    )
