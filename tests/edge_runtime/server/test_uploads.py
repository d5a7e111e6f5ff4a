"""Bundles that an admin sends: served, tried, refused with the reason, or gone without a trace."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_tools import Call, until
from bundle_tools import archived
from cli_tools import invoked
from click.testing import Result
from echo_bundle import write_echo_bundle
from house import BROKEN_STEP, SOLVED, UPLOAD, House, house_of
from key_tools import ADMIN, USER, write_key_file
from service_tools import Server, command, free_port, refusal, wait_for

from hrm_edge.push_cli import main as push_main
from hrm_edge_runtime.contract.manifest import read_manifest
from hrm_edge_server import uploads
from hrm_edge_server.uploads import MARKER, UploadFolder, Uploads

pytestmark = pytest.mark.usefixtures("untried")


def push(*arguments: object, key: str = ADMIN) -> Result:
    return invoked(push_main, *arguments, HRM_API_KEY=key)


def content(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != MARKER]


def kept(folder: Path) -> dict[str, str]:
    """What the folder of uploads holds: links with the names of their bundles."""
    names: dict[str, str] = {}
    for path in content(folder):
        if path.is_symlink():
            names[path.name] = read_manifest(path).name
    versions = [path for path in content(folder) if not path.is_symlink()]
    assert sorted(path.resolve() for path in folder.glob("*.bundle")) == sorted(versions)
    return names


@contextlib.contextmanager
def board(tmp_path: Path) -> Iterator[Server]:
    """A server of an echo model that takes uploads."""
    with Server(serve_command(tmp_path), headers={"x-api-key": ADMIN}) as server:
        server.wait_until_ready()
        yield server


def serve_command(tmp_path: Path) -> list[str]:
    first = tmp_path / "first.bundle"
    if not first.exists():
        write_echo_bundle(first, name="first")
    options = [f"--keys={write_key_file(tmp_path)}", f"--upload-dir={tmp_path}/uploads"]
    return command("serve", first, *options, "--threads=1", "--slots=2")


@pytest.mark.process
def test_push_adds_a_bundle_that_survives_a_restart(tmp_path: Path) -> None:
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
            done = push(refused, server.url, "--name", "second", key=key)
            assert done.exit_code == 3
            assert done.stderr.count("\n") == 1
            assert reason in done.stderr
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
        with Server(serve_command(tmp_path)) as other:
            assert other.exit_status() == 2
            assert "another server uses" in other.log
        assert server.http.delete("/models/second").status_code == 200
        wait_for(lambda: content(folder) == [])
        assert [one["name"] for one in server.http.get("/models").json()["models"]] == ["first"]


@pytest.mark.process
def test_a_fleet_gets_a_bundle_and_a_board_that_is_down_is_named(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "sent.bundle", name="sent")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    boards = tmp_path / "boards"
    down = f"http://127.0.0.1:{free_port()}"
    with board(tmp_path / "one") as one, board(tmp_path / "two") as two:
        boards.write_text(f"# the fleet\n{one.url}\n\n{down}\n{two.url}\n")
        done = push(bundle, "--fleet", boards)
        assert done.exit_code == 3
        assert done.stderr.startswith(f"{down}: no answer")
        assert "1 of 3 boards did not take the bundle" in done.stderr
        for server in (one, two):
            assert server.solve(SOLVED, model="sent").status_code == 200
        by_name = push(bundle, "--fleet", f"127.0.0.1:{one.port}")
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
def test_a_fleet_that_is_not_one_is_wrong_use(arguments: tuple[str, ...], problem: str) -> None:
    done = push("sudoku-6x6", *arguments)
    assert done.exit_code == 2
    assert problem in done.stderr


@pytest.mark.process
def test_a_damaged_upload_is_listed_as_failed_and_can_be_replaced(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "sent.bundle", name="sent")
    folder = tmp_path / "uploads"
    with board(tmp_path) as server:
        for name in ("torn", "hollow", "first"):
            assert push(bundle, server.url, "--name", name).exit_code == 0
    (folder / "torn.bundle" / "step.fp32.onnx").write_bytes(b"torn")
    (folder / "hollow.bundle" / "manifest.json").write_bytes(b"")
    (folder / "first.bundle" / "step.fp32.onnx").write_bytes(b"torn")
    with board(tmp_path) as server:
        models = {one["name"]: one for one in server.http.get("/models").json()["models"]}
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


def test_a_folder_of_other_files_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "notes.202611261200").mkdir()
    with pytest.raises(ValueError, match="holds other files, so it is not a folder for uploads"):
        UploadFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.202611261200"]


async def test_an_upload_that_cannot_be_kept_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = archived(sent_bundle(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with house(tmp_path) as board:
        monkeypatch.setattr(UploadFolder, "keep", fail)
        assert (await put(board, body))[:2] == (507, "no-room")
        assert await board.names() == ["first"]
        assert content(board.folder) == []
        await until(lambda: board.lanes == [("first", 1)])


@contextlib.asynccontextmanager
async def house(tmp_path: Path, *, takes_uploads: bool = True) -> AsyncIterator[House]:
    """An application in this process that takes uploads."""
    folder = tmp_path / "uploads"
    first = write_echo_bundle(tmp_path / "first.bundle", name="first")
    uploads = Uploads(UploadFolder(folder)) if takes_uploads else None
    async with house_of(tmp_path, first, folder, uploads) as it:
        yield it


async def put(
    board: House, body: bytes, name: str = "sent", **headers: str
) -> tuple[int, str, str]:
    """Send an upload; return the status, reason and message of the answer."""
    response = await board.http.put(f"/models/{name}", content=body, headers={**UPLOAD, **headers})
    error = response.json().get("error", {"reason": "", "message": ""})
    return response.status_code, error["reason"], error["message"]


def upload_call(board: House) -> Call:
    return Call(board.app, "/models/sent", UPLOAD, method="PUT")


def sent_bundle(tmp_path: Path) -> Path:
    return write_echo_bundle(tmp_path / "sent.bundle", name="sent")


async def test_an_upload_beyond_half_of_the_free_disk_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as board:
        usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        call = upload_call(board)  # which does not state its length
        for _ in range(6):
            call.give(bytes(1000))
        await call.task
        assert call.status == 507
        assert content(board.folder) == []


async def test_a_stalled_upload_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_SECONDS", 0.5)
    async with house(tmp_path) as board:
        call = upload_call(board)
        call.give(bytes(1000))
        await until(lambda: call.num_taken > 1 or bool(content(board.folder)))
        assert (await put(board, b""))[:2] == (503, "upload-busy")
        await call.task
        assert call.status == 408
        assert content(board.folder) == []


async def test_an_interrupted_upload_leaves_nothing(tmp_path: Path) -> None:
    body = archived(sent_bundle(tmp_path))
    async with house(tmp_path) as board:
        call = upload_call(board)
        call.give(body[:1000])
        await until(lambda: len(list(board.folder.glob(".upload-*/bundle.tar"))) == 1)
        call.leave()
        await call.task
        assert content(board.folder) == []
        assert (await put(board, body))[0] == 201
        assert kept(board.folder) == {"sent.bundle": "sent"}


async def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = archived(sent_bundle(tmp_path))
    async with house(tmp_path) as board:
        usage = shutil.disk_usage(tmp_path)._replace(free=len(body))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        assert (await put(board, body))[:2] == (507, "no-room")
        assert content(board.folder) == []


async def test_uploads_need_a_folder_and_an_admin(tmp_path: Path) -> None:
    async with house(tmp_path, takes_uploads=False) as board:
        assert (await put(board, b""))[:2] == (403, "uploads-off")
        assert (await put(board, b"", **{"x-api-key": USER}))[:2] == (403, "admin-only")
        assert (await put(board, b"", **{"x-api-key": "x"}))[0] == 401
    assert not (tmp_path / "uploads").exists()
