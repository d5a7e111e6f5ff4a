"""The client's side of HTTP: proxies, certificates, bounded answers, and what an error means.

Another program may listen at the address. Answers are bounded in bytes and in time, and an answer
that does not fit `api/schema` raises a ServerError.
"""

import contextlib
import functools
import ipaddress
import os
import ssl
import time
import urllib.request
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from hrm_edge.errors import (
    ServerError,
    UnavailableError,
    UnreachableError,
    foreign,
)
from hrm_edge_runtime.api.decoding import Fields
from hrm_edge_runtime.api.schema import ErrorAnswer
from hrm_edge_runtime.contract.errors import Error, first_fault
from hrm_host.reading import text_in

KEY_VARIABLE = "HRM_API_KEY"
MAX_KEY_FILE = 4096  # bytes
DEFAULT_RETRY_S = 1.0  # seconds to wait if a refusal has no Retry-After, or one with a date
MAX_ANSWER_BYTES = 8 << 20  # bytes of a whole answer; a hundred models take a tenth of it
# bytes of a line; ten times the longest answer, a 30x30 city with its route
MAX_LINE_BYTES = 1 << 20
BUSY = (429, 503)
NO_SERVER = frozenset((502, 503, 504, *range(520, 525), 530))
"""What proxies answer if the server behind them does not."""

START = "start hrm-serve there, or give another address"
REMEDIES = {
    "certificate is not valid for": "use an address that the server's certificate names",
    "not yet valid": "set this machine's clock",
    "certificate has expired": "renew the certificate, or set this machine's clock",
    "CERTIFICATE_VERIFY_FAILED": "pass the server's certificate with --cacert (in Python cacert), "
    "or name its file in SSL_CERT_FILE",
    "WRONG_VERSION_NUMBER": "write http:// in place of https://",
    "disconnected without sending": "start hrm-serve there again, or write https:// if it uses TLS",
}
"""Parts of messages of OpenSSL and httpx, the special ones first."""
OWN_REMEDIES = {
    "bad-key": "set HRM_API_KEY or pass the key, with --key-file or in Python with api_key",
    "not-found": "give the address of its page, without /solve behind it",
}
"""By reasons of hrm-serve, whose own remedies are for people who write requests."""


class Connection:
    """HTTP requests to one address from any thread, also of a process that was forked."""

    def __init__(
        self, url: str, api_key: str | None, timeout_s: float, cacert: Path | str | None
    ) -> None:
        url = url.strip()
        self.url = url if "://" in url else f"http://{url}"
        self._timeout_s = timeout_s
        # no compression, because unpacked data would have no limit
        headers = {"accept-encoding": "identity"}
        self._proxied = ""  # the remedy if a proxy of the environment answers
        try:
            key = (api_key or "").strip()  # a mounted secret ends its line
            if not key.isascii() or not key.isprintable():
                raise ValueError("the key holds a character that hrm-key never writes")
            if key:
                headers["authorization"] = f"Bearer {key}"
            address = httpx.URL(self.url)
            found = proxy_for(address)
            if found is not None:
                self._proxied = f"correct the variable {found[0]}, or add this host to no_proxy"
            self._open = functools.partial(
                httpx.Client,
                base_url=address,
                headers=headers,
                timeout=httpx.Timeout(timeout_s, connect=10.0),
                verify=_trusted(address, cacert),
                proxy=found and found[1],
                trust_env=False,
            )
            self._http = self._open()
        except (httpx.InvalidURL, OSError, ValueError) as error:
            remedy = "correct --url, the key, or the environment's proxy and certificates"
            raise UnreachableError(f"cannot connect to {url} ({error}): {remedy}.") from error
        self._pid = os.getpid()

    def _own_http(self) -> httpx.Client:
        """The connections of this process; a parent's would mix its answers with ours."""
        if self._pid != os.getpid():
            self._http = self._open()
            self._pid = os.getpid()
        if self._http.is_closed:
            raise Error(f"the client of {self.url} is closed: make another one.")
        return self._http

    def close(self) -> None:
        self._http.close()

    @contextlib.contextmanager
    def response(self, method: str, path: str, **content: Any) -> Generator[httpx.Response]:
        """A successful response with its body unread; raises ServerError or UnreachableError."""
        try:
            with self._own_http().stream(method, path, **content) as response:
                if not response.is_success:
                    raise self._error_of(response)
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            known = (remedy for part, remedy in REMEDIES.items() if part in str(error))
            remedy = next(known, self._proxied or START)
            raise UnreachableError(f"no answer from {self.url} ({error}): {remedy}.") from error

    def whole(self, fields: type[Fields], response: httpx.Response) -> Fields:
        return parsed(fields, self._content(response), response.status_code)

    def lines(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield each line as soon as it is complete."""
        line = bytearray()
        end_s = time.monotonic() + self._timeout_s
        for piece in response.iter_raw():
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line += end
                self._check(response, len(line), MAX_LINE_BYTES, end_s)
                yield bytes(line)
                line.clear()
                end_s = time.monotonic() + self._timeout_s
            line += rest
            self._check(response, len(line), MAX_LINE_BYTES, end_s)
        if line:
            yield bytes(line)

    def _content(self, response: httpx.Response) -> bytes:
        end_s = time.monotonic() + self._timeout_s
        content = bytearray()
        for piece in response.iter_raw():
            content += piece
            self._check(response, len(content), MAX_ANSWER_BYTES, end_s)
        return bytes(content)

    def _check(
        self, response: httpx.Response, num_bytes: int, max_bytes: int, end_s: float
    ) -> None:
        """Raise ServerError for an answer, or a line of it, that is too long or too late."""
        if num_bytes > max_bytes:
            message = f"the server's answer has more than {max_bytes} bytes"
            raise foreign(response.status_code, message)
        if time.monotonic() > end_s:
            message = f"the server's answer did not end within {self._timeout_s:g} s"
            raise foreign(response.status_code, message)

    def _error_of(self, response: httpx.Response) -> ServerError | UnreachableError:
        """What an answer without success means; only some are worth another try.

        An error in our shape comes from hrm-serve: 429 and 503 are temporary. Any other comes from
        a proxy: it may be without its server for now, or it may be busy.
        """
        status = response.status_code
        asked = response.headers.get("retry-after", "")
        retry_after_s = float(asked) if asked.isdecimal() else DEFAULT_RETRY_S
        try:
            detail = ErrorAnswer.model_validate_json(self._content(response)).error
        except ValidationError:
            return self._proxy_error(response, retry_after_s)
        remedy = OWN_REMEDIES.get(detail.reason, detail.remedy)
        detail = detail.model_copy(update={"remedy": remedy})
        # a deadline starts again with each request, so another try does not help
        if status in BUSY and detail.reason != "cannot-make-deadline":
            return UnavailableError(status, detail, retry_after_s)
        return ServerError(status, detail)

    def _proxy_error(
        self, response: httpx.Response, retry_after_s: float
    ) -> ServerError | UnreachableError:
        status = response.status_code
        server = response.headers.get("server") or response.headers.get("via") or "a proxy"
        if status in NO_SERVER:
            problem = f"{server[:80]} at {self.url} answers {status}, not hrm-serve"
            remedy = self._proxied or START
            return UnreachableError(f"{problem}: {remedy}.", retry_after_s=retry_after_s)
        remedy = self._proxied
        if status == 413:
            remedy = "raise its limit on bodies (nginx: client_max_body_size), or send less"
        elif response.next_request is not None:
            remedy = f"give the address to which it leads ({response.next_request.url})"
        error = foreign(status, f"{server[:80]} answered {status} without a reason", remedy)
        if status in BUSY:
            return UnavailableError(status, error.detail, retry_after_s)
        return error


def read_key(path: Path | None) -> str | None:
    """Read a server's key from a file's first line.

    None without a file: `Client` then takes HRM_API_KEY. No option holds the key itself, because
    every user can read command lines.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as stream:  # may be a pipe from a password store
            words = text_in(stream.read, MAX_KEY_FILE).split()
    except (OSError, ValueError) as error:
        remedy = "write the server's key into it"
        raise ValueError(f"the key file {path} cannot be read ({error}): {remedy}.") from error
    if not words:
        raise ValueError(f"the key file {path} is empty: write the server's key into it.")
    return words[0]


def parsed(fields: type[Fields], content: bytes, status: int) -> Fields:
    """The fields in the JSON of an answer; raises ServerError if they do not fit."""
    try:
        return fields.model_validate_json(content)
    except ValidationError as error:
        message = f"the server does not answer as hrm-serve does ({first_fault(error)[:200]})"
        raise foreign(status, message) from None


def _trusted(address: httpx.URL, cacert: Path | str | None) -> ssl.SSLContext | bool:
    """The certificates to trust: a file, or else those of SSL_CERT_FILE or of httpx."""
    if address.scheme != "https":
        return False
    file = cacert or os.environ.get("SSL_CERT_FILE")
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=str(file))
    except OSError as error:  # also for a file that is not a certificate
        raise ValueError(f"{file} is not a file of certificates: {error}") from error


def proxy_for(address: httpx.URL) -> tuple[str, httpx.Proxy] | None:
    """The environment's proxy for an address, after its variable.

    None if `_is_direct`. Raises ValueError for an unusable proxy.
    """
    if _is_direct(address.host):
        return None
    proxies = urllib.request.getproxies()
    for kind in (address.scheme, "all"):
        url = proxies.get(kind)
        if not url:
            continue
        variable = f"{kind}_proxy"
        try:
            proxy = httpx.Proxy(url if "://" in url else f"http://{url}")
        except (httpx.InvalidURL, ValueError) as error:
            raise ValueError(f"the variable {variable} holds no proxy: {error}") from error
        if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
            raise ValueError(f"the variable {variable} needs pip install 'httpx[socks]'")
        return variable, proxy
    return None


def _is_direct(host: str) -> bool:
    """Whether a host is this machine, or one that no_proxy names, perhaps by its network."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost") or urllib.request.proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return True
    for entry in urllib.request.getproxies().get("no", "").split(","):
        with contextlib.suppress(ValueError):  # it is not a network
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False
