"""Keys and the file that knows them: a line of JSON for each, with its label, its rights and a hash of the key.

The hash is plain SHA-256. A slow hash protects words that people choose, because it makes guessing dear; these keys are
256 random bits, made by `hrm-key` and nowhere else, and nobody guesses those at any speed. A slow hash would only let
strangers keep the server busy with wrong keys.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_edge_runtime.http.principal import Caller
from hrm_edge_runtime.http.token_bucket import Allowance
from hrm_host import atomic

MAX_KEYS = 1000  # each request is compared with every one, and each label is a metric
KEY_BYTES = 32
PREFIX = "hrm_"  # lets a person, or a scanner of leaked secrets, see what a string is


class KeyFileError(ValueError):
    """A key file that cannot be used, or a change to it that cannot be made."""


class Key(BaseModel):
    """One line of the file; a `rate` bounds the puzzles per second, and `burst` says how many may come at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    role: Literal["user", "admin"] = "user"
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rate: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    burst: Annotated[int, Field(ge=1, le=1_000_000)] = 10

    def caller(self) -> Caller:
        return Caller(label=self.label, is_admin=self.role == "admin")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a key, and how often they may ask."""

    caller: Caller
    allowance: Allowance | None


def new_secret() -> str:
    """A key as its holder gets it."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


class KeyRing:
    """The keys of a file, read again when told to; where it has become unusable, those of before stay in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._holders: list[tuple[Key, Holder]] = []
        self.reload()

    def reload(self) -> None:
        """Read the file again; the allowance of a key that stayed as it was goes on."""
        known = {key.model_dump_json(): holder for key, holder in self._holders}
        self._holders = [(key, known.get(key.model_dump_json()) or _holder(key)) for key in read_keys(self._path)]

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, secret: str) -> Holder | None:
        """Who holds this key. Hashes have one length and all are compared to the end, so the time tells nothing."""
        given = hash_of(secret)
        found = [holder for key, holder in self._holders if hmac.compare_digest(given, key.sha256)]
        return found[0] if found else None


def read_keys(path: Path) -> list[Key]:
    """The keys of a file; refuses one that is empty, that anybody may write to, or a line that is no key."""
    try:
        text = path.read_text(encoding="utf-8")
        anybody_writes = path.stat().st_mode & stat.S_IWOTH
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"the key file {path} cannot be read ({_cause(error)}): {_make_one(path)}.") from None
    if anybody_writes:
        raise KeyFileError(f"everybody on this machine may write to the key file {path}: chmod 600 {path}.")
    keys = [_key(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not 1 <= len(keys) <= MAX_KEYS:
        raise KeyFileError(f"{path} holds {len(keys)} keys where 1 to {MAX_KEYS} are expected: {_make_one(path)}.")
    for name in ("label", "sha256"):
        if len({getattr(key, name) for key in keys}) < len(keys):
            raise KeyFileError(f"a {name} stands twice in the key file {path}: remove one of the two lines.")
    return keys


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file in one step, with the owner, group and mode it had; a new one only its owner may read."""
    try:
        with (
            atomic.new_file(path) as draft,
            open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file,
        ):
            if path.exists():
                _take_after(file.fileno(), path.stat())
            file.writelines(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys)
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be written: {_cause(error)}.") from None


def _take_after(descriptor: int, before: os.stat_result) -> None:
    """A server under a user of its own reads the file through its group."""
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _holder(key: Key) -> Holder:
    return Holder(caller=key.caller(), allowance=Allowance(rate=key.rate, burst=key.burst) if key.rate else None)


def _key(path: Path, number: int, line: str) -> Key:
    """What stands in the line is never repeated: it may be a key that somebody has put there in the clear."""
    try:
        return Key.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        why = "it is no JSON" if first["type"] == "json_invalid" else f"{field}: {first['msg']}"
        raise KeyFileError(f"line {number} of {path} is no key as hrm-key writes it ({why}): remove it.") from None


def _make_one(path: Path) -> str:
    return f"make one with 'hrm-key add LABEL --file {path}'"


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
