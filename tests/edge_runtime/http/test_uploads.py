"""Bundles that an admin sends: served, tried, refused with the reason, or gone without a trace."""

import contextlib
import functools
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from asgi_tools import Call, client_of, until
from echo_bundle import ECHO_STEP, write_echo_bundle
from fastapi import FastAPI
from service_tools import Server, command, wait_for

from hrm_edge_runtime.contract.archive import Archive
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import read_manifest, write_manifest
from hrm_edge_runtime.http import uploads
from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.http.auth import Key, KeyRing, hash_of, new_secret, write_keys
from hrm_edge_runtime.http.middleware import Access
from hrm_edge_runtime.http.models import models_and_library
from hrm_edge_runtime.http.uploads import Uploads
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import LaneDefaults, open_lanes
from hrm_edge_runtime.worker.process import ThreadEngine

SOLVED = "1234341221434321"
USER = new_secret()
ADMIN = new_secret()
TAR = "application/x-tar"
DEFAULTS = LaneDefaults(
    engine="cpu:fp32", num_slots=2, num_threads=1, queue_limit=8, max_attempts=2
)
BROKEN_STEP = ECHO_STEP.replace(
    "logits_BTV = Mul (tokens_BT1, ones_V)",
    "flat = Reshape (tokens_BT1, wrong_shape)\n  logits_BTV = Mul (flat, ones_V)",
)


def write_key_file(folder: Path) -> Path:
    user = Key(label="u", sha256=hash_of(USER))
    admin = Key(label="a", role="admin", sha256=hash_of(ADMIN))
    write_keys(folder / "keys", [user, admin])
    return folder / "keys"


def push(*arguments: object, key: str = ADMIN) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HRM_API_KEY": key}
    line = command("push", *arguments)
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)


def kept(folder: Path) -> dict[str, str]:
    """What the folder of uploads holds: links with the names of their bundles."""
    names: dict[str, str] = {}
    for path in folder.iterdir():
        if path.is_symlink():
            names[path.name] = read_manifest(path).name
    versions = [path for path in folder.iterdir() if not path.is_symlink()]
    assert sorted(path.resolve() for path in folder.glob("*.bundle")) == sorted(versions)
    return names


@contextlib.contextmanager
def board(folder: Path) -> Iterator[Server]:
    """A server that serves an echo model and takes uploads."""
    options = [f"--keys={folder}/keys", f"--upload-dir={folder}/uploads", "--threads=1"]
    serve = command("serve", folder / "first.bundle", *options, "--slots=2")
    with Server(serve, headers={"x-api-key": ADMIN}) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.process
def test_one_command_brings_a_bundle_to_a_board_and_a_restart_keeps_it(tmp_path: Path) -> None:
    write_key_file(tmp_path)
    write_echo_bundle(tmp_path / "first.bundle", name="first")
    bundle = write_echo_bundle(tmp_path / "sent.bundle", name="sent", max_segments=5)
    failing = write_echo_bundle(tmp_path / "bad.bundle", name="sent", step=BROKEN_STEP)
    folder = tmp_path / "uploads"
    with board(tmp_path) as server:
        done = push(bundle, server.url, "--name", "second")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"added second at {server.url}")
        assert server.solve(SOLVED, model="second").json()["solved"]
        assert push(bundle, server.url, "--name", "second").stdout.startswith("replaced second")
        for refused, key, reason in (
            (bundle, USER, "only an admin may change the served models"),
            (bundle, "wrong", "the request holds none that it knows"),
            (failing, ADMIN, "must have an open batch axis"),
        ):
            done = push(refused, server.url, "--name", "second", key=key)
            assert done.returncode == 3
            assert done.stderr.count("\n") == 1
            assert reason in done.stderr
        assert server.solve(SOLVED, model="second").json()["solved"]
        assert kept(folder) == {"second.bundle": "second"}
    shutil.copytree(folder / "second.bundle", folder / ("second." + "0" * 12))
    (folder / ".upload-of-a-killed-server").mkdir()
    with board(tmp_path) as server:
        assert kept(folder) == {"second.bundle": "second"}
        assert server.solve(SOLVED, model="second").json()["solved"]
        assert server.solve(SOLVED, model="first").json()["solved"]


@pytest.mark.process
def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    write_key_file(tmp_path)
    write_echo_bundle(tmp_path / "first.bundle", name="first")
    folder = tmp_path / "uploads"
    head = (
        "PUT /models/second HTTP/1.1\r\nhost: x\r\n"
        f"x-api-key: {ADMIN}\r\ncontent-type: {TAR}\r\ncontent-length: 100000\r\n\r\n"
    )
    with board(tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + b"x" * 50_000)
            wait_for(lambda: len(list(folder.glob(".upload-*/bundle.tar"))) == 1)
        wait_for(lambda: list(folder.iterdir()) == [])
        assert push(tmp_path / "first.bundle", server.url).stdout.startswith("replaced first")
        assert kept(folder) == {"first.bundle": "first"}


class House:
    """An application in this process that takes uploads."""

    def __init__(self, app: FastAPI, http: httpx.AsyncClient, folder: Path) -> None:
        self.app = app
        self.folder = folder
        self._http = http

    async def put(self, body: bytes, name: str = "sent", **headers: str) -> tuple[int, str, str]:
        """The status, reason and message of the answer to an upload."""
        fields = {"x-api-key": ADMIN, "content-type": TAR, **headers}
        response = await self._http.put(f"/models/{name}", content=body, headers=fields)
        error = response.json().get("error", {"reason": "", "message": ""})
        return response.status_code, error["reason"], error["message"]


@contextlib.asynccontextmanager
async def house(tmp_path: Path, *, takes_uploads: bool = True) -> AsyncIterator[House]:
    folder = tmp_path / "uploads"
    kept = Uploads(folder) if takes_uploads else None
    bundle = Bundle.open(write_echo_bundle(tmp_path / "first.bundle", name="first"))
    models, library = models_and_library([bundle], DEFAULTS, (), kept)
    make_lanes = functools.partial(open_lanes, [*library.lanes.values()])
    engine_client = EngineClient(functools.partial(ThreadEngine, make_lanes), {"first": 10})
    access = Access(keys=KeyRing(write_key_file(tmp_path)))
    app = create_app(engine_client, models, access, library=library)
    async with client_of(app, engine_client) as http:
        yield House(app, http, folder)


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial takes a second; the server processes above make them."""

    async def passed(_: object, **__: object) -> None:
        pass

    monkeypatch.setattr("hrm_edge_runtime.worker.trial.try_lane", passed)


def sent_bundle(tmp_path: Path) -> Path:
    return write_echo_bundle(tmp_path / "sent.bundle", name="sent")


def sent(bundle: Path) -> bytes:
    archive = Archive(bundle)
    body = b"".join(archive.pieces())
    assert len(body) == archive.num_bytes
    return body


def tar_with(bundle: Path, *members: tarfile.TarInfo, **options: int) -> bytes:
    """A bundle's files and further members, as `tar` writes them."""
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=options.get("format", tarfile.USTAR_FORMAT)
    ) as tar:
        for file in sorted(bundle.iterdir()):
            tar.add(file, file.name)
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return stream.getvalue()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.size = size
    return info


HOSTILE = {
    "out": member("../out", size=3),
    "absolute": member("/tmp/out", size=3),
    "folder": member("folder", tarfile.DIRTYPE),
    "inside": member("folder/file", size=3),
    "hidden": member(".hidden", size=3),
    "link": member("link", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": member("link", tarfile.LNKTYPE, "manifest.json"),
    "device": member("device", tarfile.CHRTYPE),
    "sparse": member("sparse", tarfile.GNUTYPE_SPARSE),
    "twice": member("manifest.json", size=3),
    "unlisted": member("more.bin", size=3),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_member_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    body = tar_with(sent_bundle(tmp_path), HOSTILE[name])
    async with house(tmp_path) as board:
        status, reason, message = await board.put(body)
        assert (status, reason) == (422, "bad-bundle")
        assert "cannot be unpacked" in message
        assert str(tmp_path) not in message
        assert list(board.folder.iterdir()) == []


async def test_a_plain_tar_of_the_files_is_taken(tmp_path: Path) -> None:
    async with house(tmp_path) as board:
        assert (await board.put(tar_with(sent_bundle(tmp_path))))[0] == 201
        assert kept(board.folder) == {"sent.bundle": "sent"}


async def test_damaged_bytes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    body = sent(sent_bundle(tmp_path))
    middle = len(body) // 2
    flipped = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    pax = tar_with(tmp_path / "sent.bundle", member("x" * 150), format=tarfile.PAX_FORMAT)
    async with house(tmp_path) as board:
        for damaged in (b"", b"x" * 700, body[:300], body[:middle], body[:-1024], flipped, pax):
            assert (await board.put(damaged))[:2] == (422, "bad-bundle")
        assert list(board.folder.iterdir()) == []
        assert (await board.put(body))[0] == 201


async def test_a_bundle_of_another_name_or_with_wrong_hashes_is_refused(tmp_path: Path) -> None:
    bundle = sent_bundle(tmp_path)
    body = sent(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["puzzle_table.npy"]["sha256"] = "0" * 64
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    async with house(tmp_path) as board:
        assert (await board.put(body, "other"))[0] == 422
        status, _, message = await board.put(sent(bundle))
        assert (status, "does not have the SHA-256" in message) == (422, True)
        for name in ("..", ".hidden", "a b", "a%0ab", "a%2fb"):
            assert (await board.put(body, name))[0] in (404, 405, 422)
        assert list(board.folder.iterdir()) == []


async def test_a_manifest_cannot_choose_a_path(tmp_path: Path) -> None:
    bundle = sent_bundle(tmp_path)
    fields = read_manifest(bundle).model_dump(exclude={"files"})
    write_manifest(bundle, **{**fields, "name": "../out"})
    async with house(tmp_path) as board:
        assert (await board.put(sent(bundle), "%2e%2e%2fout"))[0] in (404, 422)
        assert (await board.put(sent(bundle)))[0] == 422
        assert list(board.folder.iterdir()) == []


async def test_too_large_is_refused_by_its_length_or_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as board:
        large = str(uploads.MAX_UPLOAD_BYTES + 1)
        refused = await board.put(b"", **{"content-length": large})
        assert refused[:2] == (413, "upload-too-large")
        monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 5000)
        call = Call(
            board.app, "/models/sent", {"x-api-key": ADMIN, "content-type": TAR}, method="PUT"
        )
        for _ in range(6):
            call.give(bytes(1000))
        await call.task
        assert call.status == 413
        assert list(board.folder.iterdir()) == []


async def test_an_upload_that_stops_ends_in_time_and_another_one_meanwhile_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PIECE_SECONDS", 0.5)
    async with house(tmp_path) as board:
        headers = {"x-api-key": ADMIN, "content-type": TAR}
        call = Call(board.app, "/models/sent", headers, method="PUT")
        call.give(bytes(1000))
        await until(lambda: call.num_taken > 1 or bool(list(board.folder.iterdir())))
        assert (await board.put(b""))[:2] == (503, "upload-busy")
        await call.task
        assert call.status == 408
        assert list(board.folder.iterdir()) == []


async def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = sent(sent_bundle(tmp_path))
    async with house(tmp_path) as board:
        usage = shutil.disk_usage(tmp_path)._replace(free=len(body))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        assert (await board.put(body))[:2] == (507, "no-room")
        assert list(board.folder.iterdir()) == []


async def test_without_a_folder_or_an_admins_key_nothing_is_taken(tmp_path: Path) -> None:
    async with house(tmp_path, takes_uploads=False) as board:
        assert (await board.put(b""))[:2] == (403, "uploads-off")
        assert (await board.put(b"", **{"x-api-key": USER}))[:2] == (403, "admin-only")
        assert (await board.put(b"", **{"x-api-key": "x"}))[0] == 401
    assert not (tmp_path / "uploads").exists()
