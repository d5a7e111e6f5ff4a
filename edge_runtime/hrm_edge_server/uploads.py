"""Bundles that an admin sends: received within bounds, tried, then kept or removed."""

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import BinaryIO

import anyio
from starlette.requests import ClientDisconnect, Request

from hrm_edge_runtime.api.errors import AGAIN, ServiceError, invalid, without_folders
from hrm_edge_runtime.api.schema import ChangeAnswer
from hrm_edge_runtime.contract import archive
from hrm_edge_runtime.contract.manifest import BundleError, is_plain_name
from hrm_edge_server.body import ClientGoneError, check_type
from hrm_edge_server.upload_folder import UploadFolder

ARCHIVE_TYPE = "application/x-tar"
MAX_UPLOAD_BYTES = 2 << 30  # the tables of ARC's million variants take 1.5 GB
PIECE_SECONDS = 10.0  # wait for the next piece
UPLOAD_SECONDS = 1800.0
WRITE_BYTES = 1 << 20  # buffered in memory for one write
COPIES = 2  # copies on the disk while a bundle is unpacked: the archive and its files

Commit = Callable[[], None]
Serve = Callable[[str, str, Commit], Awaitable[ChangeAnswer]]
"""Tries and serves the bundle of a name and a path; calls `Commit` just before the change."""


def is_upload(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0]
    return media_type.strip().lower() == ARCHIVE_TYPE


class Uploads:
    """Receives bundles into a folder; one upload at a time."""

    def __init__(self, folder: UploadFolder) -> None:
        self.folder = folder
        self._one_at_a_time = asyncio.Lock()
        self._cleaning: asyncio.Task[None] | None = None

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
            try:
                with _room_errors():
                    version = await self._received(request, name)
                    return await serve(
                        name, str(version), functools.partial(self.folder.keep, name, version)
                    )
            finally:
                await asyncio.to_thread(self.folder.clean)

    def forget(self, name: str) -> None:
        """Remove a model's upload, if it has one, for good."""
        with _room_errors():
            self.folder.forget(name)
        self._cleaning = asyncio.ensure_future(self._clean())

    async def _clean(self) -> None:
        async with self._one_at_a_time:
            await asyncio.to_thread(self.folder.clean)

    async def _received(self, request: Request, name: str) -> Path:
        """Receive a new version; returns its directory, whose files are not checked yet."""
        self._require_room(request)
        with self.folder.temporary() as temporary:
            file = temporary / "bundle.tar"
            await self._write_body(request, file)
            unpacked = temporary / "bundle"
            try:
                await asyncio.to_thread(_unpack, file, unpacked)
            except BundleError as error:
                message, _, remedy = without_folders(str(error)).rpartition(": ")
                raise ServiceError(422, "bad-bundle", message, remedy.rstrip(".")) from None
            return await asyncio.to_thread(self.folder.add, name, unpacked)

    def _require_room(self, request: Request) -> None:
        num_bytes = int(request.headers.get("content-length", MAX_UPLOAD_BYTES))
        if num_bytes > MAX_UPLOAD_BYTES:
            raise _too_large()
        free_bytes = shutil.disk_usage(self.folder.path).free
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


def _unpack(file: Path, unpacked: Path) -> None:
    unpacked.mkdir()
    archive.unpack(file, unpacked)


def _too_large() -> ServiceError:
    message = f"the bundle has more than {MAX_UPLOAD_BYTES} bytes"
    remedy = "copy it to the server by hand and add it by its path"
    return ServiceError(413, "upload-too-large", message, remedy)
