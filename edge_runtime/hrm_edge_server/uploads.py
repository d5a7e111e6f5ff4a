"""Bundles that an admin sends: received within bounds, tried, then kept or removed.

The folder belongs to one server, which removes only what it has marked:

<folder>/.hrm-uploads           the marker of the folder, locked by the server that uses it
<folder>/NAME.bundle            a link to the version that is served; a restart serves it again
<folder>/NAME.<12 digits>/      the version; it holds a marker
<folder>/.upload-*/             an upload that has not ended; it holds a marker
"""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

import anyio
from starlette.requests import ClientDisconnect, Request

from hrm_edge_runtime.api.errors import AGAIN, ServiceError, bad_bundle, invalid
from hrm_edge_runtime.api.schema import ChangeAnswer
from hrm_edge_runtime.contract import archive
from hrm_edge_runtime.contract.manifest import BundleError, is_plain_name
from hrm_edge_server.body import ClientGoneError, check_type
from hrm_host import atomic, system

ARCHIVE_TYPE = "application/x-tar"
PIECE_SECONDS = 10.0  # wait for the next piece
UPLOAD_SECONDS = 1800.0
WRITE_BYTES = 1 << 20  # buffered in memory for one write
MARKER = ".hrm-uploads"
PREFIX = ".upload-"
SUFFIX = ".bundle"

Commit = Callable[[], None]
Serve = Callable[[str, Path, Commit], Awaitable[ChangeAnswer]]
"""Tries and serves the bundle of a name and a path; calls `Commit` just before the change."""


class UploadFolder:
    """Raises ValueError for a folder of other files, or one that another server uses."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        marker = self.path / MARKER
        if not marker.exists() and any(self._entries()):
            raise ValueError(
                f"{path} holds other files, so it is not a folder for uploads: give an empty or "
                "new one as --upload-dir."
            )
        self._lock = atomic.try_lock(marker)
        if self._lock is None:
            raise ValueError(
                f"another server uses {path} for its uploads: give this one its own --upload-dir."
            )
        self.clean()

    def kept(self) -> dict[str, Path]:
        """The versions to serve at the start, by name."""
        links = [path for path in sorted(self.path.glob(f"*{SUFFIX}")) if path.is_symlink()]
        return {link.name.removesuffix(SUFFIX): link.resolve() for link in links}

    @contextlib.contextmanager
    def temporary(self) -> Generator[Path]:
        """A marked directory that vanishes after the block."""
        folder = Path(mkdtemp(prefix=PREFIX, dir=self.path))
        (folder / MARKER).touch()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, name: str, files: Path) -> Path:
        """Move a directory of files here as a new version, which `keep` or `clean` follows."""
        version = self.path / f"{name}.{secrets.token_hex(6)}"
        (files / MARKER).touch()
        atomic.publish(files, version)
        return version

    def keep(self, name: str, version: Path) -> None:
        """Make a version the one that a restart serves."""
        link = self.path / f".{name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(version.name, target_is_directory=True)
        os.replace(link, self.path / f"{name}{SUFFIX}")

    def forget(self, name: str) -> Path | None:
        """Let a restart serve no version of this name; returns the version to remove."""
        link = self.path / f"{name}{SUFFIX}"
        if not link.is_symlink():
            return None
        version = link.resolve()
        is_made_here = version in self._made()
        link.unlink()
        system.sync(self.path)
        return version if is_made_here else None

    def clean(self) -> None:
        """Remove unfinished uploads, and versions that are not kept."""
        system.sync(self.path)
        kept = set(self.kept().values())
        for folder in self._made():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _made(self) -> Iterator[Path]:
        """The directories that a server made here."""
        for path in self._entries():
            if not path.is_symlink() and (path / MARKER).is_file():
                yield path

    def _entries(self) -> list[Path]:
        """What is here, but for the folder of every new volume, which only root may read."""
        return [path for path in self.path.iterdir() if path.name != "lost+found"]


class Uploads:
    """Receives bundles into a folder; one upload at a time."""

    def __init__(self, folder: UploadFolder) -> None:
        self.folder = folder
        self._one_at_a_time = asyncio.Lock()
        self._removing: asyncio.Task[None] | None = None

    async def put(self, request: Request, name: str, serve: Serve) -> ChangeAnswer:
        """Receive a bundle and serve it; a failure leaves nothing behind.

        Rejects it with 408, 415, 422, 503 or 507.
        """
        check_type(request, (ARCHIVE_TYPE,))
        if not is_plain_name(name):
            message = f"{name[:200]!r} is not a name for a bundle that is sent"
            raise invalid("bad-name", message, "use letters, digits, '.', '_' and '-'")
        if self._one_at_a_time.locked():
            message = "the server receives another bundle"
            raise ServiceError(503, "upload-busy", message, AGAIN, retry_after_s=5)
        async with self._one_at_a_time:
            try:
                with _room_errors():
                    version = await self._received(request, name)
                    commit = functools.partial(self.folder.keep, name, version)
                    return await serve(name, version, commit)
            finally:
                await asyncio.to_thread(self.folder.clean)

    def forget(self, name: str) -> None:
        """Remove a model's upload, if it has one, for good."""
        with _room_errors():
            version = self.folder.forget(name)
        if version is not None:
            removing = asyncio.to_thread(shutil.rmtree, version, ignore_errors=True)
            self._removing = asyncio.ensure_future(removing)

    async def _received(self, request: Request, name: str) -> Path:
        """Receive a new version; returns its directory, whose files are not checked yet."""
        # room for the archive, and for its files while it is unpacked
        most_bytes = shutil.disk_usage(self.folder.path).free // 2
        if int(request.headers.get("content-length", 0)) > most_bytes:
            raise _no_room(most_bytes)
        with self.folder.temporary() as temporary:
            file = temporary / "bundle.tar"
            await self._write_body(request, file, most_bytes)
            unpacked = temporary / "bundle"
            unpacked.mkdir()
            try:
                await asyncio.to_thread(archive.unpack, file, unpacked)
            except BundleError as error:
                raise bad_bundle(error) from None
            return await asyncio.to_thread(self.folder.add, name, unpacked)

    async def _write_body(self, request: Request, file: Path, most_bytes: int) -> None:
        try:
            with file.open("wb") as stream, anyio.fail_after(UPLOAD_SECONDS):
                await _copy_body(request, stream, most_bytes)
        except TimeoutError:
            limits = f"{PIECE_SECONDS:.0f} s without a byte, {UPLOAD_SECONDS:.0f} s in all"
            message = f"the bundle did not arrive in time: {limits}"
            raise ServiceError(408, "body-too-slow", message, "send it again") from None
        except ClientDisconnect:
            raise ClientGoneError from None


@contextlib.contextmanager
def _room_errors() -> Generator[None]:
    """Reject a change with 507 if the disk is full or does not take files."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"the folder of uploads cannot be changed ({reason})"
        remedy = "make room on the server's disk"
        raise ServiceError(507, "no-room", message, remedy) from error


async def _copy_body(request: Request, stream: BinaryIO, most_bytes: int) -> None:
    num_bytes = 0
    waiting = bytearray()
    pieces = request.stream()
    while True:
        with anyio.fail_after(PIECE_SECONDS):
            piece = await anext(pieces, None)
        if piece is None:
            break
        num_bytes += len(piece)
        if num_bytes > most_bytes:
            raise _no_room(most_bytes)
        waiting += piece
        if len(waiting) >= WRITE_BYTES:
            await asyncio.to_thread(stream.write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(stream.write, bytes(waiting))


def _no_room(most_bytes: int) -> ServiceError:
    message = f"the folder of uploads has no room for a bundle of more than {most_bytes} bytes"
    return ServiceError(507, "no-room", message, "make room on the server's disk")
