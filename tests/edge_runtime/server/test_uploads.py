"""Bundles that an admin sends: served, tried, refused with the reason, or gone without a trace."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgi_tools import SOLVED, UPLOAD, Call, House, house_of, until
from cli_tools import invoked, rejected
from echo_bundle import BROKEN_STEP, write_echo_bundle
from odd_server import MODEL, body, odd_server
from service_tools import ADMIN, USER, Server, free_port, refusal, upload_server, wait_for

from hrm_edge.push_cli import main as push_main
from hrm_edge_runtime.contract.manifest import read_manifest
from hrm_edge_server import uploads
from hrm_edge_server.uploads import MARKER, UploadFolder

pytestmark = pytest.mark.usefixtures("untried")


push = partial(invoked, push_main, HRM_API_KEY=ADMIN)


def content(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != MARKER]


def kept(folder: Path) -> dict[str, str]:
    """What the folder of uploads holds: links with the names of their bundles."""
    names = {}
    for path in content(folder):
        if path.is_symlink():
            names[path.name] = read_manifest(path).name
    versions = [path for path in content(folder) if not path.is_symlink()]
    assert sorted(path.resolve() for path in folder.glob("*.bundle")) == sorted(versions)
    return names


def board(tmp_path: Path) -> AbstractContextManager[Server]:
    """A server of an echo model that takes uploads."""
    first = tmp_path / "first.bundle"
    if not first.exists():
        write_echo_bundle(first, name="first")
    return upload_server(tmp_path, first, "--slots=2")


@pytest.mark.process
def test_push_adds_a_bundle_that_survives_a_restart(tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "sent.bundle", name="sent", max_segments=5)
    failing = write_echo_bundle(tmp_path / "bad.bundle", name="sent", step=BROKEN_STEP)
    folder = tmp_path / "uploads"
    with board(tmp_path) as server:
        done = push(bundle, server.url, "--name", "second")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.startswith(f"added second at {server.url}")
        assert server.solve(SOLVED, model="second").json()["verified"]
        assert push(bundle, server.url, "--name", "second").stdout.startswith("replaced second")
        for refused, key, reason in (
            (bundle, USER, "only an admin may change the served models"),
            (bundle, "wrong", "the request holds none that it knows"),
            (failing, ADMIN, "must have an open batch axis"),
        ):
            options = ("--name", "second")
            told = rejected(push_main, refused, server.url, *options, status=3, HRM_API_KEY=key)
            assert reason in told
        assert server.solve(SOLVED, model="second").json()["verified"]
        assert kept(folder) == {"second.bundle": "second"}
    shutil.copytree(folder / "second.bundle", folder / ("second." + "0" * 12))
    left = folder / ".upload-of-a-killed-server"
    left.mkdir()
    (left / MARKER).touch()
    own = [folder / name for name in ("photos.202611261200", ".upload-notes", "mine.bundle")]
    for path in own:
        path.mkdir()
        (path / "file").write_text("not the server's")
    with board(tmp_path) as server:
        for path in own:
            assert (path / "file").exists()
            shutil.rmtree(path)
        assert kept(folder) == {"second.bundle": "second"}
        assert server.solve(SOLVED, model="second").json()["verified"]
        assert server.solve(SOLVED, model="first").json()["verified"]
        with pytest.raises(ValueError, match="another server uses"):
            UploadFolder(folder)
        assert server.http.delete("/models/second").status_code == 200
        wait_for(lambda: content(folder) == [])
        assert [one["name"] for one in server.models()] == ["first"]


def test_a_fleet_gets_a_bundle_and_a_board_that_is_down_is_named(tmp_path: Path):
    boards = tmp_path / "boards"
    down = f"http://127.0.0.1:{free_port()}"
    taken = body(json.dumps({"model": MODEL, "replaced": False}))
    with odd_server(taken) as one, odd_server(taken) as two:
        boards.write_text(f"\ufeff# the fleet\n{one}\n\n{down}\n{two}\n")
        done = push("sudoku-6x6", "--fleet", boards)
        assert done.exit_code == 3
        assert done.stderr.startswith(f"{down}: no answer")
        assert "1 of 3 boards did not take the bundle" in done.stderr
        for url in (one, two):
            assert f"added sudoku-6x6 at {url}" in done.stdout
        by_name = push("sudoku-6x6", "--fleet", one.removeprefix("http://"))
        assert (by_name.exit_code, by_name.stdout.count("\n")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "takes one URL or --fleet"),
        (("http://board:8000", "--fleet", "boards.lan:8000"), "takes one URL or --fleet"),
        (("--fleet", "boards.lan"), "pass a file with a URL on each line, or a DNS name"),
        (("--fleet", "nothing.invalid:8000"), "has no address"),
    ],
)
def test_a_fleet_that_is_not_one_is_wrong_use(arguments: tuple[str, ...], problem: str):
    assert problem in rejected(push_main, "sudoku-6x6", *arguments)


@pytest.mark.process
def test_a_damaged_upload_is_listed_as_failed_and_can_be_replaced(tmp_path: Path):
    bundle = write_echo_bundle(tmp_path / "sent.bundle", name="sent")
    folder = tmp_path / "uploads"
    folder.mkdir()
    for name in ("torn", "hollow", "first"):
        version = write_echo_bundle(folder / f"{name}.0123456789ab", name=name)
        (version / MARKER).touch()
        (folder / f"{name}.bundle").symlink_to(version.name)
    (folder / MARKER).touch()
    (folder / "torn.bundle" / "step.fp32.onnx").write_bytes(b"torn")
    (folder / "hollow.bundle" / "manifest.json").write_bytes(b"")
    (folder / "first.bundle" / "step.fp32.onnx").write_bytes(b"torn")
    with board(tmp_path) as server:
        models = {one["name"]: one for one in server.models()}
        assert models["torn"]["state"] == "failed"
        assert "step.fp32.onnx" in models["torn"]["problem"]
        assert counts(server) == {"ready": 1, "loading": 0, "failed": 2}
        assert refusal(server.solve(SOLVED, model="torn")) == (503, "model-failed")
        assert server.solve(SOLVED).json()["model"] == "first"
        assert "hollow is not served" in server.log
        assert "first is not served as uploaded" in server.log
        assert push(bundle, server.url, "--name", "torn").exit_code == 0
        assert server.solve(SOLVED, model="torn").status_code == 200
        assert server.http.delete("/models/hollow").status_code == 200
        assert counts(server) == {"ready": 2, "loading": 0, "failed": 0}


def counts(server: Server) -> Any:
    return server.http.get("/readyz").json()["models"]


def test_a_folder_of_other_files_is_not_taken_but_a_new_volume_is(tmp_path: Path):
    folder = tmp_path / "notes.202611261200"
    folder.mkdir()
    with pytest.raises(ValueError, match="holds other files, so it is not a folder for uploads"):
        UploadFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder]
    (folder / "lost+found").mkdir()
    UploadFolder(folder)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """An application in this process that takes uploads, and a bundle to send."""
    write_echo_bundle(tmp_path / "sent.bundle", name="sent")
    async with house_of(tmp_path) as house:
        yield house


async def test_an_upload_that_cannot_be_kept_changes_nothing(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UploadFolder, "keep", fail)
    assert refusal(await house.put("sent")) == (507, "no-room")
    assert await house.names() == ["first"]
    assert content(tmp_path / "uploads") == []
    await until(lambda: house.lanes == [("first", 1)])


def begin_upload(house: House, piece: bytes) -> Call:
    """Send a piece of an upload that does not state its length."""
    call = Call(house.app, "/models/sent", UPLOAD, method="PUT")
    call.give(piece)
    return call


async def test_an_upload_beyond_half_of_the_free_disk_is_rejected(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert refusal(await house.put("sent")) == (507, "no-room")
    call = begin_upload(house, bytes(6000))
    await call.task
    assert call.status == 507
    assert content(tmp_path / "uploads") == []


async def test_a_stalled_upload_times_out(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(uploads, "PIECE_SECONDS", 0.5)
    call = begin_upload(house, bytes(1000))
    await until(lambda: call.num_taken > 1 or bool(content(tmp_path / "uploads")))
    assert refusal(await house.put("sent")) == (503, "upload-busy")
    await call.task
    assert call.status == 408
    assert content(tmp_path / "uploads") == []


async def test_an_interrupted_upload_leaves_nothing(house: House, tmp_path: Path):
    folder = tmp_path / "uploads"
    call = begin_upload(house, bytes(1000))
    await until(lambda: len(list(folder.glob(".upload-*/bundle.tar"))) == 1)
    call.leave()
    await call.task
    assert content(folder) == []
    assert (await house.put("sent")).status_code == 201
    assert kept(folder) == {"sent.bundle": "sent"}


async def test_uploads_need_a_folder(tmp_path: Path):
    async with house_of(tmp_path, uploads="") as board:
        assert refusal(await board.put("first")) == (403, "uploads-off")
    assert not (tmp_path / "uploads").exists()
