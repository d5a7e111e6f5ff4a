"""API keys: the file that holds them, who may do what and how often, and the checks before a server listens.

A key is 256 random bits made by `hrm-key`, so its hash is plain SHA-256: a slow hash protects words that people choose,
and here it would only let strangers keep the server busy with wrong keys.
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
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.types import Scope

from hrm_host import atomic, system

MAX_KEYS = 1000  # each request is compared with every one, and each label is a metric
KEY_BYTES = 32
PREFIX = "hrm_"  # lets a person, or a scanner of leaked secrets, see what a string is
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class KeyFileError(ValueError):
    """A key file that cannot be used, or a change to it that cannot be made."""


class BindError(ValueError):
    """Options that would open the server to others by mistake."""


class Key(BaseModel, extra="forbid", frozen=True):
    """One line of the file; `rate` bounds the puzzles per second, `burst` how many may come at once."""

    label: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    role: Literal["user", "admin"] = "user"
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    rate: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    burst: int = Field(default=10, ge=1, le=1_000_000)

    @functools.cached_property
    def bucket(self) -> "TokenBucket | None":
        return TokenBucket(rate=self.rate, burst=self.burst) if self.rate else None


class TokenBucket:
    """`rate` requests per second on average, `burst` at once."""

    def __init__(
        self, *, rate: float, burst: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left = float(burst)
        self._seen_s = now()

    def wait_s(self) -> float:
        """Take a token and return 0, or take none and return the seconds until there will be one."""
        now_s = self._now()
        self._left = min(self._burst, self._left + self._rate * (now_s - self._seen_s))
        self._seen_s = now_s
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0

    async def take(self) -> None:
        while (wait_s := self.wait_s()) > 0:
            await asyncio.sleep(wait_s)


def key_of(scope: Scope) -> Key | None:
    """The key of a request; None on a server without keys."""
    return scope.get("state", {}).get("key")


class KeyRing:
    """The keys of a file, read again on request; where the file has become unusable, those of before stay in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: list[Key] = []
        self.reload()

    def reload(self) -> None:
        """Read the file again; a key that stayed as it was keeps its bucket."""
        before = {key: key for key in self._keys}
        self._keys = [before.get(key, key) for key in read_keys(self._path)]

    def in_force(self, key: Key) -> Key | None:
        return next((other for other in self._keys if other.sha256 == key.sha256), None)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: str) -> Key | None:
        """The key with this secret. All hashes are compared, each to its end, so the time reveals nothing."""
        given = hash_of(secret)
        found = [key for key in self._keys if hmac.compare_digest(given, key.sha256)]
        return found[0] if found else None


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[Key]:
    """The keys of a file; refuses one that is empty, that anybody may write to, or a line that is no key."""
    remedy = f"make one with 'hrm-key add LABEL --file {path}'"
    try:
        text = path.read_text(encoding="utf-8")
        anybody_writes = system.anybody_may_write(path)
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(
            f"the key file {path} cannot be read ({_cause(error)}): {remedy}."
        ) from None
    if anybody_writes:
        raise KeyFileError(
            f"everybody on this machine may write to the key file {path}: chmod 600 {path}."
        )
    keys = [
        _key(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    if not 1 <= len(keys) <= MAX_KEYS:
        raise KeyFileError(
            f"{path} holds {len(keys)} keys where 1 to {MAX_KEYS} are expected: {remedy}."
        )
    for name in ("label", "sha256"):
        if len({getattr(key, name) for key in keys}) < len(keys):
            raise KeyFileError(
                f"a {name} stands twice in the key file {path}: remove one of the two lines."
            )
    return keys


@contextlib.contextmanager
def changed_keys(path: Path) -> Generator[list[Key]]:
    """The keys of a file, which are written back as the block leaves them; other processes wait for their turn."""
    with atomic.lock(path.resolve()):
        keys = read_keys(path) if path.exists() else []
        yield keys
        write_keys(path, keys)


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file in one step, with the owner, group and mode it had; a new one only its owner may read."""
    if len(keys) > MAX_KEYS:
        raise KeyFileError(
            f"{path} would hold {len(keys)} keys where at most {MAX_KEYS} are read: remove one first."
        )
    path = path.resolve()  # a link stays one
    try:
        with (
            atomic.new_file(path) as draft,
            open(
                os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
            ) as file,
        ):
            if path.exists():  # a server under a user of its own reads the file through its group
                system.give_rights(file.fileno(), path.stat())
            file.writelines(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys)
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be written: {_cause(error)}.") from None


def bind_warnings(
    host: str, *, with_keys: bool, tls_cert: Path | None, tls_key: Path | None, insecure: bool
) -> list[str]:
    """What an operator should know of these options; refuses those that are wrong or open the server unasked."""
    if (tls_cert is None) != (tls_key is None):
        raise BindError(
            "one of --tls-cert and --tls-key is missing: give both, or neither for plain HTTP."
        )
    if tls_cert is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
        except OSError as error:  # which ssl.SSLError is too
            raise BindError(
                f"the certificate {tls_cert} cannot be used with the key {tls_key} ({error}): give a PEM file of each, "
                "made for one another."
            ) from None
    if host in LOOPBACK:
        return []
    if not with_keys and not insecure:
        raise BindError(
            f"--host {host} lets other machines in and no keys guard it: make one with 'hrm-key add LABEL --file keys' "
            "and say --keys keys, or say --insecure where whoever reaches this address may use the server."
        )
    if not with_keys:
        return [
            f"listening on {host} WITHOUT KEYS: whoever reaches this address may use the server"
        ]
    if tls_cert is None:
        return [
            f"listening on {host} without TLS: keys cross the network in the clear unless a proxy encrypts"
        ]
    return []


def checked_origins(origins: Sequence[str]) -> Sequence[str]:
    """Origins as browsers name them; `*` would let every page that a visitor opens use this server."""
    for origin in origins:
        if not re.fullmatch(r"https?://[a-z0-9.:\[\]-]+", origin):
            raise BindError(
                f"--cors {origin} is no origin: name one, as https://my.site or http://localhost:3000."
            )
    return origins


def _key(path: Path, number: int, line: str) -> Key:
    """One key of the file; the refusal never repeats the line, which may be a key in the clear."""
    try:
        return Key.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        why = "it is no JSON" if first["type"] == "json_invalid" else f"{where}: {first['msg']}"
        raise KeyFileError(
            f"line {number} of {path} is no key as hrm-key writes it ({why}): remove it."
        ) from None


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
