"""API keys: their file, who may do what and how often, and the checks before a server listens.

A key is 256 random bits from `hrm-key`, so its hash is plain SHA-256. A slow hash protects words
that people choose; here it would only let strangers keep the server busy with wrong keys.
"""

import asyncio
import contextlib
import functools
import hashlib
import hmac
import os
import re
import secrets
import ssl
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.types import Scope

from hrm_edge_runtime.contract.errors import first_fault
from hrm_edge_server.options import ServeOptions
from hrm_host import atomic, system
from hrm_host.reading import text_in

MAX_KEYS = 1000  # every request is compared with all keys, and each label is a metric
LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|\[?::1\]?")


class Key(BaseModel, extra="forbid", frozen=True):
    """One line of the file. `rate` is in puzzles per second; `burst` may come at once."""

    label: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    role: Literal["user", "admin"] = "user"
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rate: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    burst: int = Field(default=10, ge=1, le=1_000_000)

    @functools.cached_property
    def bucket(self) -> "TokenBucket | None":
        if self.rate is None:
            return None
        return TokenBucket(rate=self.rate, burst=self.burst)


class TokenBucket:
    """`rate` requests per second on average, `burst` at once."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._seen_s = time.monotonic()

    def wait_s(self) -> float:
        """Take a token and return 0, or return the seconds until the next token."""
        now_s = time.monotonic()
        refilled = self._left + self._rate * (now_s - self._seen_s)
        self._left = min(self._burst, refilled)
        self._seen_s = now_s
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0

    async def take(self) -> None:
        """Wait for a token and take it."""
        wait_s = self.wait_s()
        while wait_s > 0:
            await asyncio.sleep(wait_s)
            wait_s = self.wait_s()


def key_of(scope: Scope) -> Key | None:
    """The key of a request; None on a server without keys."""
    return scope.get("state", {}).get("key")


class KeyRing:
    """The keys of a file. `reload` reads it again; if that fails, the old keys stay valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: list[Key] = []
        self.reload()

    def reload(self) -> None:
        """Read the file again; an unchanged key keeps its bucket."""
        before = {key: key for key in self._keys}
        self._keys = [before.get(key, key) for key in read_keys(self._path)]

    def in_force(self, key: Key) -> Key | None:
        """The key with the same secret in the file that was read last."""
        for current in self._keys:
            if current.sha256 == key.sha256:
                return current
        return None

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: str) -> Key | None:
        """The key with this secret. Compares all hashes to their end, so time reveals nothing."""
        digest = hash_of(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found


def new_secret() -> str:
    """256 random bits; people and scanners of leaked secrets recognize the prefix."""
    return "hrm_" + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The keys of a file.

    Raises ValueError if the file is empty, if anybody may write to it, or if a line is not a key.
    """
    remedy = f"make one with 'hrm-key add LABEL --file {path}'"
    try:
        with path.open("rb") as stream:  # may be a pipe from a password store
            text = text_in(stream.read)
        anybody_writes = system.anybody_may_write(path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", error)
        raise ValueError(f"the key file {path} cannot be read ({cause}): {remedy}.") from None
    if anybody_writes:
        raise ValueError(
            f"everybody on this machine may write to the key file {path}: run chmod 600 {path}."
        )
    lines = enumerate(text.splitlines(), 1)
    keys = [_key(path, number, line) for number, line in lines if line.strip()]
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"{path} holds {len(keys)} keys, not 1 to {MAX_KEYS}: {remedy}.")
    for name in ("label", "sha256"):
        if len({getattr(key, name) for key in keys}) < len(keys):
            raise ValueError(
                f"the key file {path} holds a {name} twice: remove one of the two lines."
            )
    return keys


@contextlib.contextmanager
def changed_keys(path: Path) -> Generator[list[Key]]:
    """Yield the keys of a file and write them back at the end; other processes wait."""
    with atomic.lock(path.resolve()):
        keys = read_keys(path) if path.exists() else []
        yield keys
        write_keys(path, keys)


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file in one step and keep its owner, group and mode.

    Only its owner may read a new file.
    """
    if len(keys) > MAX_KEYS:
        raise ValueError(
            f"{path} would hold {len(keys)} keys, more than {MAX_KEYS}: remove one first."
        )
    path = path.resolve()  # a link stays a link
    try:
        with atomic.new_file(path) as draft:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                if path.exists():  # a server under its own user may read it as a group member
                    system.give_rights(handle, path.stat())
                for key in keys:
                    file.write(f"{key.model_dump_json(exclude_none=True)}\n")
    except OSError as error:
        raise ValueError(f"the key file {path} cannot be written: {error.strerror}.") from None


def bind_warning(options: ServeOptions) -> str | None:
    """A warning to the operator about these options.

    Raises ValueError for options that are wrong or open the server by mistake.
    """
    _check_certificate(options.tls_cert, options.tls_key)
    host = options.host
    if LOOPBACK.fullmatch(host):
        return None
    if not options.keys and not options.insecure:
        raise ValueError(
            f"--host {host} lets other machines in without keys: make a key with "
            "'hrm-key add LABEL --file keys' and pass --keys keys, or pass --insecure if whoever "
            "reaches this address may use the server."
        )
    if not options.keys:
        return f"listening on {host} WITHOUT KEYS: whoever reaches this address may use the server"
    if options.tls_cert is None:
        return (
            f"listening on {host} without TLS: keys cross the network in the clear "
            "unless a proxy encrypts"
        )
    return None


def _check_certificate(tls_cert: Path | None, tls_key: Path | None) -> None:
    if (tls_cert is None) != (tls_key is None):
        raise ValueError(
            "one of --tls-cert and --tls-key is missing: pass both, or neither for plain HTTP."
        )
    if tls_cert is None:
        return
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls_cert, tls_key, password="")  # OpenSSL would ask for one
    except OSError as error:  # an ssl.SSLError is an OSError
        raise ValueError(
            f"the certificate {tls_cert} cannot be used with the key {tls_key} ({error}): "
            "pass PEM files that belong together, and the key without a passphrase."
        ) from None


def checked_origins(texts: Sequence[str]) -> Sequence[str]:
    """Origins as browsers name them. `*` would admit every page that a visitor opens."""
    origins = [text.lower().removesuffix("/") for text in texts]
    for origin in origins:
        # also of an extension of the browser, or of an app that holds one
        if not re.fullmatch(r"[a-z+.-]+://[a-z0-9.:\[\]-]+", origin):
            raise ValueError(
                f"--cors {origin} is not an origin: "
                "pass one such as https://my.site or http://localhost:3000."
            )
    return origins


def checked_hosts(texts: Sequence[str]) -> Sequence[str]:
    """Names as the Host header has them, without scheme and port."""
    hosts = [re.sub(r"^https?://|(:\d+)?/?$", "", text.lower()) for text in texts]
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9._-]+", host):
            raise ValueError(f"--allow-host {host} is not a name: pass one such as my.site.")
    return hosts


def _key(path: Path, number: int, line: str) -> Key:
    """One key of the file. The error never repeats the line, which may be a key in the clear."""
    try:
        return Key.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(
            f"line {number} of {path} is not a key that hrm-key wrote ({first_fault(error)}): "
            "remove it."
        ) from None
