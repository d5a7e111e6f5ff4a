"""Bundles that an admin sends: received within bounds, tried, then kept or removed.

<folder>/NAME.bundle            a link to the version that is served; a restart serves it again
<folder>/NAME.<12 digits>/      the version
<folder>/.upload-*/             an upload that has not ended
"""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import anyio
from starlette.requests import ClientDisconnect, Request

from hrm_edge_runtime.api.errors import AGAIN, ServiceError, invalid, without_folders
from hrm_edge_runtime.api.schema import ChangeAnswer
from hrm_edge_runtime.contract import archive
from hrm_edge_runtime.contract.manifest import BundleError, is_plain_name
from hrm_edge_runtime.http.body import ClientGoneError, check_type
from hrm_host import atomic, system

ARCHIVE_TYPE = "application/x-tar"
MAX_UPLOAD_BYTES = 2 << 30  # the tables of ARC's million variants take 1.5 GB
PIECE_SECONDS = 10.0  # wait for the next piece
UPLOAD_SECONDS = 1800.0
WRITE_BYTES = 1 << 20  # buffered in memory for one write
COPIES = 2  # copies on the disk while a bundle is unpacked: the archive and its files
PREFIX = ".upload-"
VERSION = re.compile(r"(.+)\.[0-9a-f]{12}")

Serve = Callable[[str, str], Awaitable[ChangeAnswer]]
"""Tries and serves the bundle of a name and a path."""


def is_upload(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == ARCHIVE_TYPE


class Uploads:
    """The folder of uploaded bundles, which no other program changes; one upload at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._one_at_a_time = asyncio.Lock()
        self._remove_leftovers()

    def bundles(self) -> list[Path]:
        """The versions to serve at the start."""
        return sorted(path.resolve() for path in self.folder.glob("*.bundle"))

    async def put(self, request: Request, name: str, serve: Serve) -> ChangeAnswer:
        """Receive a bundle and serve it; a failure leaves nothing behind.

        Rejects it with 408, 413, 415, 422, 503 or 507.
        """
        check_type(request, (ARCHIVE_TYPE,))
        if not is_plain_name(name):
            message = f"{name[:200]!r} is not a name for a bundle that is sent"
            raise invalid("bad-name", message, "use letters, digits, '.', '_' and '-'")
        if self._one_at_a_time.locked():
            headers = {"Retry-After": "5"}
            message = "the server receives another bundle"
            raise ServiceError(503, "upload-busy", message, AGAIN, headers=headers)
        async with self._one_at_a_time:
            with self._room_errors():
                version = await self._received(request, name)
            try:
                change = await serve(name, str(version))
            except BaseException:  # includes a canceled request
                shutil.rmtree(version, ignore_errors=True)
                raise
            with self._room_errors():
                await asyncio.to_thread(self._keep, name, version)
            return change

    async def _received(self, request: Request, name: str) -> Path:
        """Receive a new version; returns its directory, whose files are not checked yet."""
        self._require_room(request)
        with TemporaryDirectory(prefix=PREFIX, dir=self.folder) as temporary:
            file = Path(temporary) / "bundle.tar"
            await self._write_body(request, file)
            unpacked = Path(temporary) / "bundle"
            version = self.folder / f"{name}.{secrets.token_hex(6)}"
            try:
                await asyncio.to_thread(_unpack, file, unpacked, version)
            except BundleError as error:
                message, _, remedy = without_folders(str(error)).rpartition(": ")
                raise ServiceError(422, "bad-bundle", message, remedy.rstrip(".")) from None
            return version

    def _require_room(self, request: Request) -> None:
        num_bytes = int(request.headers.get("content-length", MAX_UPLOAD_BYTES))
        if num_bytes > MAX_UPLOAD_BYTES:
            raise _too_large()
        free_bytes = shutil.disk_usage(self.folder).free
        if COPIES * num_bytes > free_bytes:
            need = f"{num_bytes} bytes twice, and {free_bytes} are free"
            message = f"the folder of uploads has no room: it needs {need}"
            raise ServiceError(507, "no-room", message, "make room on the server's disk")

    async def _write_body(self, request: Request, file: Path) -> None:
        try:
            with file.open("wb") as stream, anyio.fail_after(UPLOAD_SECONDS):
                await _copy_body(request, stream)
        except TimeoutError:
            limits = f"{PIECE_SECONDS:.0f} s without a byte, {UPLOAD_SECONDS:.0f} s in all"
            message = f"the bundle did not arrive in time: {limits}"
            raise ServiceError(408, "body-too-slow", message, "send it again") from None
        except ClientDisconnect:
            raise ClientGoneError from None

    def _keep(self, name: str, version: Path) -> None:
        """Make a version the one that a restart serves, and remove the others of its name."""
        link = self.folder / f".{name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(version.name, target_is_directory=True)
        os.replace(link, self.folder / f"{name}.bundle")
        system.sync(self.folder)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what a killed server left: unfinished uploads, and versions without a link."""
        served = self.bundles()
        for path in self.folder.iterdir():
            is_version = VERSION.fullmatch(path.name) is not None and not path.is_symlink()
            if path.name.startswith(PREFIX) or (is_version and path not in served):
                shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _room_errors(self) -> Generator[None]:
        """Reject the bundle with 507 if the disk is full or does not take files."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            message = f"the folder of uploads does not take the bundle ({reason})"
            remedy = "make room on the server's disk"
            raise ServiceError(507, "no-room", message, remedy) from error


async def _copy_body(request: Request, stream: BinaryIO) -> None:
    num_bytes = 0
    waiting = bytearray()
    pieces = request.stream()
    while True:
        with anyio.fail_after(PIECE_SECONDS):
            piece = await anext(pieces, None)
        if piece is None:
            break
        num_bytes += len(piece)
        if num_bytes > MAX_UPLOAD_BYTES:
            raise _too_large()
        waiting += piece
        if len(waiting) >= WRITE_BYTES:
            await asyncio.to_thread(stream.write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(stream.write, bytes(waiting))


def _unpack(file: Path, unpacked: Path, version: Path) -> None:
    unpacked.mkdir()
    archive.unpack(file, unpacked)
    atomic.publish(unpacked, version)


def _too_large() -> ServiceError:
    message = f"the bundle has more than {MAX_UPLOAD_BYTES} bytes"
    remedy = "copy it to the server by hand and add it by its path"
    return ServiceError(413, "upload-too-large", message, remedy)
